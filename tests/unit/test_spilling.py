"""Outputs that wait on disk come back as they were."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

from modelhound.features.spilling import InMemory, OnDisk, Scratch


def examples() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 5, 4, generator=generator)
    return [
        images,
        images.to(memory_format=torch.channels_last),
        images.to(torch.bfloat16),
        images.to(torch.bfloat16).to(memory_format=torch.channels_last),
        images.half(),
        torch.randn(4, 7, generator=generator),
        torch.randn(6, 4, generator=generator).t(),
        torch.randn(2, 3, 8, generator=generator),
        torch.tensor([[float("nan"), float("inf"), -0.0]]),
        torch.randint(0, 9, (3, 2), generator=generator),
        torch.randn(3, 1, 1, 1, generator=generator),
        torch.empty(0, 5),
    ]


def bits(tensor: torch.Tensor) -> list[int]:
    flat: list[int] = tensor.contiguous().reshape(-1).view(torch.uint8).tolist()
    return flat


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert bits(found) == bits(expected)
    if expected.ndim == 4:
        channels_last = torch.channels_last
        assert found.is_contiguous(memory_format=channels_last) == expected.is_contiguous(memory_format=channels_last)


@pytest.mark.parametrize("kept", [InMemory(), "disk"])
def test_every_tensor_comes_back_as_it_was_in_any_order_and_more_than_once(kept: Any) -> None:
    kept = OnDisk("cpu") if kept == "disk" else kept
    for tensor in examples():
        kept.put(tensor)
    for _ in range(2):
        for number, expected in reversed(list(enumerate(examples()))):
            assert_same(kept.get(number), expected)


def test_what_is_changed_after_it_was_put_is_not_changed_on_disk() -> None:
    kept, tensor = OnDisk("cpu"), torch.ones(3)
    kept.put(tensor)
    tensor.zero_()
    assert kept.get(0).tolist() == [1, 1, 1]
    kept.get(0).zero_()
    assert kept.get(0).tolist() == [1, 1, 1]


def test_files_have_no_name(tmp_path: Path) -> None:
    kept = OnDisk("cpu")
    kept.put(torch.ones(1000))
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []
    assert float(kept.get(0).sum()) == 1000


class FullDisk:
    """A file on a disk that takes `room` bytes, the last of them in pieces, and then no more."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: memoryview) -> int:
        if not self._room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written: int = self._file.write(data[: min(self._room, 100)])
        self._room -= written
        return written

    def free(self, room: int) -> None:
        self._room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_full_disk_leaves_the_rest_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = OnDisk("cpu")
    disk = FullDisk(kept._scratch._file, room=500)
    monkeypatch.setattr(kept._scratch, "_file", disk)
    tensors = [torch.full((100,), float(number)) for number in range(4)]
    for tensor in tensors[:3]:
        kept.put(tensor)  # 400 bytes, then 100 of the next 400, then none
    disk.free(10_000)  # somebody deletes something
    kept.put(tensors[3])
    for number, tensor in enumerate(tensors):
        assert_same(kept.get(number), tensor)


def test_a_file_that_is_cut_off_is_an_error_and_not_zeros() -> None:
    kept = OnDisk("cpu")
    kept.put(torch.ones(1000))
    kept._scratch._file.truncate(1000)
    with pytest.raises(OSError, match="cut off"):
        kept.get(0)


def test_where_no_folder_can_be_made_everything_stays_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MODELHOUND_CACHE", str(tmp_path / "file" / "cache"))
    kept = OnDisk("cpu")
    for tensor in examples():
        kept.put(tensor)
    for number, expected in enumerate(examples()):
        assert_same(kept.get(number), expected)


def test_several_may_share_one_file() -> None:
    scratch = Scratch()
    shelves = [OnDisk("cpu", scratch) for _ in range(3)]
    for tensor in examples():
        for place, kept in enumerate(shelves):
            kept.put(tensor + place)
    for place, kept in enumerate(shelves):
        for number, expected in enumerate(examples()):
            assert_same(kept.get(number), expected + place)


def test_one_file_more_is_open_however_many_share_it() -> None:
    if not Path("/proc/self/fd").is_dir():
        pytest.skip("this system does not tell which files are open")
    before = len(list(Path("/proc/self/fd").iterdir()))
    scratch = Scratch()
    shelves = [OnDisk("cpu", scratch) for _ in range(20)]
    for kept in shelves:
        kept.put(torch.ones(3))
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
