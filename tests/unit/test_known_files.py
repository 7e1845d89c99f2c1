"""A file that an earlier run has looked at is opened again only if somebody may have written to it."""

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from modelhound.data import checking, open_dataset
from modelhound.data.known_files import FileTrace
from modelhound.data.sources.folder import FileReader

MakeFolder = Callable[..., Path]
AN_HOUR_AGO = 3600


class Looks:
    """The files that were opened to be looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        look = FileReader.look

        def noting(reader: FileReader, position: int) -> tuple[str, str]:
            self.paths.append(reader.paths[position])
            return look(reader, position)

        monkeypatch.setattr(FileReader, "look", noting)

    def take(self) -> list[str]:
        paths, self.paths = sorted(self.paths), []
        return paths


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


def grow_old(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        settled = path.stat().st_mtime - AN_HOUR_AGO
        os.utime(path, (settled, settled))


def test_a_second_look_opens_no_file_and_finds_the_same(image_folder: MakeFolder, looks: Looks) -> None:
    folder = image_folder()
    grow_old(folder)
    first = open_dataset(str(folder))
    assert len(looks.take()) == 24
    second = open_dataset(str(folder))
    assert looks.take() == []
    assert (first.digests, first.fingerprint) == (second.digests, second.fingerprint)


def test_a_system_that_answers_slowly_is_asked_by_several_threads_and_says_the_same(
    image_folder: MakeFolder, looks: Looks, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = image_folder()
    grow_old(folder)
    first = open_dataset(str(folder))
    looks.take()
    monkeypatch.setattr(checking, "_FEW", 5)
    monkeypatch.setattr(checking, "_SLOW_SECONDS", 0.0)
    askers = set()
    trace = FileReader.traces

    def noting(reader: FileReader, positions: Sequence[int]) -> list[FileTrace | None]:
        askers.add(threading.current_thread().name.rpartition("_")[0])
        return trace(reader, positions)

    monkeypatch.setattr(FileReader, "traces", noting)
    second = open_dataset(str(folder))
    assert "trace" in askers
    assert looks.take() == []
    assert (first.digests, first.fingerprint, first.item_names) == (
        second.digests,
        second.fingerprint,
        second.item_names,
    )


def test_a_file_under_another_name_is_known(image_folder: MakeFolder, looks: Looks, tmp_path: Path) -> None:
    folder = image_folder()
    grow_old(folder)
    open_dataset(str(folder))
    looks.take()
    for path in folder.rglob("*.png"):
        place = tmp_path / "other" / ("even" if path.stem[-1] in "02468" else "odd")
        place.mkdir(parents=True, exist_ok=True)
        os.link(path, place / f"{path.parent.name}-{path.name}")
    assert len(open_dataset(str(tmp_path / "other"))) == 24
    assert looks.take() == []


def test_a_file_that_was_written_to_is_looked_at_again(image_folder: MakeFolder, looks: Looks) -> None:
    folder = image_folder()
    grow_old(folder)
    before = open_dataset(str(folder))
    looks.take()
    changed, other = folder / "class0" / "003.png", folder / "class1" / "003.png"
    changed.write_bytes(other.read_bytes())
    after = open_dataset(str(folder))
    assert looks.take() == ["class0/003.png"]
    assert [one == two for one, two in zip(before.digests, after.digests, strict=True)].count(False) == 1


def test_a_file_written_a_moment_ago_is_not_trusted(image_folder: MakeFolder, looks: Looks) -> None:
    folder = image_folder()
    open_dataset(str(folder))
    looks.take()
    open_dataset(str(folder))
    assert len(looks.take()) == 24


def test_a_broken_file_is_found_again_each_time(image_folder: MakeFolder, looks: Looks) -> None:
    folder = image_folder(per_class=30)
    (folder / "class2" / "007.png").write_bytes(b"no picture")
    grow_old(folder)
    first, second = open_dataset(str(folder)), open_dataset(str(folder))
    assert [each.item for each in second.skipped] == ["class2/007.png"]
    assert first.skipped == second.skipped


def test_what_is_damaged_in_the_cache_is_looked_at_again(
    image_folder: MakeFolder, looks: Looks, tmp_path: Path
) -> None:
    folder = image_folder()
    grow_old(folder)
    before = open_dataset(str(folder))
    looks.take()
    (rows,) = (tmp_path / "cache" / "features").rglob("rows-*")
    content = bytearray(rows.read_bytes())
    content[5] ^= 1
    rows.write_bytes(content)
    assert open_dataset(str(folder)).digests == before.digests
    assert len(looks.take()) == 1


def test_a_link_is_looked_at_each_time(image_folder: MakeFolder, looks: Looks) -> None:
    folder = image_folder()
    grow_old(folder)
    (folder / "class0" / "link.png").symlink_to(folder / "class0" / "000.png")
    open_dataset(str(folder))
    looks.take()
    open_dataset(str(folder))
    assert looks.take() == ["class0/link.png"]
