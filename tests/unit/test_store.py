"""What a run folder promises: nothing finished is lost, nothing half-written is believed, one writer at a time."""

import errno
import math
import multiprocessing
import os
import resource
import signal
import threading
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import msgspec
import pytest

from modelhound.errors import RequestError, RunBusyError, StoreError
from modelhound.records import (
    Failure,
    ItemSkipped,
    LatencyFailed,
    LatencyPoint,
    ModelMeasured,
    PhaseSamples,
    RankedModel,
    Ranking,
)
from modelhound.store import (
    Memo,
    default_run_path,
    is_disk_full,
    list_runs,
    open_run,
    read_run,
    set_aside,
    told_by_the_system,
    write_file,
    write_folder,
)

IDENTITY = {"data": "digits", "seed": 0}


def opened(path: Path, identity: dict[str, Any] = IDENTITY, verb: str = "search") -> Any:
    return open_run(path, verb=verb, at="2026-01-01T00:00:00", settings={"data": "digits"}, identity=identity)


def failure(number: int) -> Failure:
    return Failure(model=f"zoo:{number}", phase="forward", error="no")


def measured(model: str) -> ModelMeasured:
    return ModelMeasured(
        model=model,
        num_parameters=10,
        num_features=2,
        num_items=4,
        scores={"ridge": 0.5},
        item_scores={"ridge": b"\x00\x01"},
        phases=(PhaseSamples(phase="forward", seconds=(0.25, 0.5)),),
        wall_seconds=1.0,
        peak_memory_bytes=1,
    )


def test_records_come_back_as_they_went_in(tmp_path: Path) -> None:
    given = [measured("zoo:a"), measured("zoo:b")]
    with opened(tmp_path / "run") as run:
        for record in given:
            run.append(record)
        run.append(failure(1))
    with opened(tmp_path / "run") as run:
        assert run.read(ModelMeasured) == given
        assert run.read(Failure) == [failure(1)]
        assert run.read(ItemSkipped) == []


def test_what_was_set_aside_stays_though_something_before_it_was_deleted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    for seed in range(4):
        with opened(run, {"seed": seed}) as folder:
            folder.append(failure(seed))
        set_aside(run)
        (run / "asked.json.before-0").unlink(missing_ok=True)
    kept = [run / f"records.jsonl.before-{seed}" for seed in range(4)]
    assert [b"zoo:%d" % seed in each.read_bytes() for seed, each in enumerate(kept)] == [True] * 4
    for seed in (1, 2, 3):
        assert b'"seed": %d' % seed in (run / f"asked.json.before-{seed}").read_bytes()


@pytest.mark.parametrize("letter", ["a", "é", "漢", "🐕"])
def test_a_file_or_folder_may_have_as_long_a_name_as_the_system_allows(tmp_path: Path, letter: str) -> None:
    path = tmp_path / "kept" / (letter * (250 // len(letter.encode())) + ".html")
    write_file(path, b"page")
    assert path.read_bytes() == b"page"
    path.unlink()
    write_folder(path, lambda folder: (folder / "weights").touch())
    assert list((tmp_path / "kept").rglob("*")) == [path, path / "weights"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_refused_by_name_and_nothing_is_written(tmp_path: Path, value: float) -> None:
    bad = msgspec.structs.replace(measured("zoo:b"), scores={"ridge": 0.5, "knn": value})
    with opened(tmp_path / "run") as run:
        run.append(measured("zoo:a"))
        with pytest.raises(StoreError, match=rf"^cannot keep ModelMeasured of zoo:b: .*scores\.knn is {value};"):
            run.append(bad)
        assert run.read(ModelMeasured) == [measured("zoo:a")]


def test_a_sample_that_is_no_number_is_named_by_its_place(tmp_path: Path) -> None:
    phases = (PhaseSamples(phase="forward", seconds=(0.25,)), PhaseSamples(phase="score", seconds=(0.5, math.nan)))
    with opened(tmp_path / "run") as run, pytest.raises(StoreError, match=r"but phases\.1\.seconds\.1 is nan"):
        run.append(msgspec.structs.replace(measured("zoo:a"), phases=phases))


def test_an_answer_with_a_number_that_is_none_is_refused_and_the_run_stays_unfinished(tmp_path: Path) -> None:
    answer = Ranking(rests_on=(), confidence=math.nan, num_items=0, models=(), by_size=(), size_agreement=None)
    with opened(tmp_path / "run") as run, pytest.raises(StoreError, match=r"cannot keep Ranking: .* confidence is nan"):
        run.write_answer(answer, headline="")
    assert not list_runs(tmp_path)[0].finished


def test_a_half_written_last_line_is_cut_and_the_next_record_is_whole(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        run.append(failure(1))
        run.append(failure(2))
    file = tmp_path / "run" / "records.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    with opened(tmp_path / "run") as run:
        run.append(failure(3))
        assert run.read(Failure) == [failure(1), failure(3)]


def test_a_changed_byte_anywhere_never_changes_a_record(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        run.append(measured("zoo:a"))
        run.append(measured("zoo:b"))
    file = tmp_path / "run" / "records.jsonl"
    intact = file.read_bytes()
    allowed = [measured("zoo:a"), measured("zoo:b")]
    for position in range(0, len(intact), 7):
        file.write_bytes(intact[:position] + bytes([intact[position] ^ 0x01]) + intact[position + 1 :])
        with opened(tmp_path / "run") as run:
            found = run.read(ModelMeasured)
        assert all(record in allowed for record in found)
        assert len(found) >= 1 or b"\n" not in file.read_bytes()[:-1]


def test_two_writers_are_kept_apart(tmp_path: Path) -> None:
    with opened(tmp_path / "run"), pytest.raises(RunBusyError, match="another process"), opened(tmp_path / "run"):
        pass
    with opened(tmp_path / "run") as run:  # and the folder is free again afterwards
        run.append(failure(1))


def _hold(path: Path, ready: Event) -> None:
    with opened(path):
        ready.set()
        signal.pause()


def test_a_killed_writer_leaves_the_folder_free(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(tmp_path / "run", ready))
    holder.start()
    assert ready.wait(60)
    with pytest.raises(RunBusyError), opened(tmp_path / "run"):
        pass
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    with opened(tmp_path / "run") as run:
        assert run.read(Failure) == []


def test_a_folder_begun_with_another_request_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    with opened(tmp_path / "run"):
        pass
    with (
        pytest.raises(RequestError, match="seed was 0, now 1"),
        opened(tmp_path / "run", {"data": "digits", "seed": 1}),
    ):
        pass
    with pytest.raises(RequestError, match="holds a search run"), opened(tmp_path / "run", verb="latency"):
        pass


def test_records_that_come_while_a_run_is_read_are_not_taken_for_damaged_ones(tmp_path: Path) -> None:
    is_over = threading.Event()
    with opened(tmp_path / "run") as run:

        def fill() -> None:
            number = 0
            while not is_over.is_set() and number < 20_000:
                run.append(failure(number))
                number += 1

        filling = threading.Thread(target=fill)
        filling.start()
        try:
            seen = [read_run(tmp_path / "run")]
            while filling.is_alive() and len(seen[-1].records) < 3000:
                seen.append(read_run(tmp_path / "run"))
        finally:
            is_over.set()
            filling.join()
    assert {each.num_unread for each in seen} == {0}
    assert len(seen) > 2


def test_a_folder_with_other_files_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "album").mkdir()
    (tmp_path / "album" / "holiday.jpg").write_bytes(b"photo")
    with pytest.raises(RequestError, match="holds other files"), opened(tmp_path / "album"):
        pass
    assert [path.name for path in (tmp_path / "album").iterdir()] == ["holiday.jpg"]


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    for path in (tmp_path / "run", tmp_path / "run" / "below"):
        with pytest.raises(RequestError, match="choose another --run"), opened(path):
            pass


def test_what_a_kill_leaves_of_an_unfinished_write_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "lock").touch()
    (tmp_path / "run" / ".asked.json.123-456").write_text('{"ver')
    with opened(tmp_path / "run") as run:
        run.append(failure(1))
    assert {path.name for path in (tmp_path / "run").iterdir()} - {"lock"} == {"asked.json", "records.jsonl"}


def test_records_whose_request_is_gone_are_not_taken_for_others(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        run.append(measured("zoo:a"))
    (tmp_path / "run" / "asked.json").unlink()
    with pytest.raises(RequestError, match="nobody knows"), opened(tmp_path / "run", {"seed": 5}):
        pass


def test_a_run_that_goes_on_is_unfinished_until_it_has_a_new_ranking(tmp_path: Path) -> None:
    with opened(tmp_path / "runs" / "one") as run:
        run.write_answer(ranking("zoo:a"), headline="zoo:a")
    assert list_runs(tmp_path / "runs")[0].finished
    with opened(tmp_path / "runs" / "one"):
        assert not list_runs(tmp_path / "runs")[0].finished


def test_others_may_read_a_run(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        run.append(failure(1))
        run.write_answer(ranking("zoo:a"), headline="zoo:a")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "run").iterdir() if path.name != "lock"}
    assert len(modes) == 1  # whatever the umask gives, the same for all


def _append_on_a_full_disk(path: Path) -> None:
    # A limit on file size ends a write as a full disk does: part of the line, then an error.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with opened(path) as run:
        run.append(failure(1))
        size = (path / "records.jsonl").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, resource.RLIM_INFINITY))
        with pytest.raises(StoreError, match="finished models are kept"):
            run.append(failure(2))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        run.append(failure(3))


def test_a_full_disk_is_an_error_that_keeps_what_was_written(tmp_path: Path) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_append_on_a_full_disk, args=(tmp_path / "run",))
    child.start()
    child.join()
    assert child.exitcode == 0
    with opened(tmp_path / "run") as run:
        assert run.read(Failure) == [failure(1), failure(3)]


def test_the_same_request_gets_the_same_folder_and_another_request_another() -> None:
    here = default_run_path("search", "/data/my photos", {"seed": 0, "limit": None})
    assert here == default_run_path("search", "/data/my photos", {"limit": None, "seed": 0})
    assert here != default_run_path("search", "/data/my photos", {"limit": None, "seed": 1})
    assert here.name.startswith("search-my-photos-")


def test_the_folder_of_a_request_can_be_made_however_long_the_name_of_its_data_is(tmp_path: Path) -> None:
    """As long as the system allows, before the verb and the digest come to it."""
    one, other = (default_run_path("breakeven", f"/data/{'x' * 255}", {"seed": seed}) for seed in (0, 1))
    assert one != other
    (tmp_path / one).mkdir(parents=True)


def ranking(best: str) -> Ranking:
    row = RankedModel(
        rank=1,
        model=best,
        score=0.5,
        interval=(0.4, 0.6),
        scores={},
        num_parameters=1,
        seconds=1.0,
        tied=False,
        size_rank=1,
    )
    return Ranking(
        rests_on=("ridge",), confidence=0.95, num_items=4, models=(row,), by_size=(best,), size_agreement=None
    )


def test_an_answer_that_is_no_text_counts_as_none(tmp_path: Path) -> None:
    with opened(tmp_path / "run") as run:
        run.write_answer(ranking("zoo:a"), headline="zoo:a")
    assert read_run(tmp_path / "run").answer is not None
    file = tmp_path / "run" / "answer.json"
    file.write_bytes(file.read_bytes().replace(b"ridge", b"r\xd2dge"))
    assert read_run(tmp_path / "run").answer is None


def test_runs_are_listed_with_what_they_hold(tmp_path: Path) -> None:
    with opened(tmp_path / "runs" / "one") as run:
        run.append(measured("zoo:a"))
        run.append(failure(1))
        run.write_answer(ranking("zoo:a"), headline="zoo:a")
    with opened(tmp_path / "runs" / "two") as run:
        run.append(measured("zoo:a"))
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "asked.json").write_text("{")
    found = {Path(summary.run).name: summary for summary in list_runs(tmp_path / "runs")}
    assert set(found) == {"one", "two", "broken"}
    assert found["broken"].verb == "damaged"
    assert (found["one"].headline, found["one"].num_models, found["one"].num_failures) == ("zoo:a", 1, 1)
    assert not found["two"].finished
    assert list_runs(tmp_path / "nowhere") == []


def test_what_libraries_make_of_a_full_disk_is_told_as_the_system_told_it() -> None:
    with pytest.raises(OSError, match="No space left") as caught, told_by_the_system():
        raise ValueError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert is_disk_full(caught.value)
    wrapped = RuntimeError("enforce fail at inline_container.cc")
    wrapped.__context__ = OSError(errno.EDQUOT, "quota")
    with pytest.raises(OSError, match="quota") as caught, told_by_the_system():
        raise wrapped
    assert is_disk_full(caught.value)
    with pytest.raises(MemoryError), told_by_the_system():
        raise MemoryError


def test_a_model_of_which_no_point_was_timed_counts_as_failed(tmp_path: Path) -> None:
    with opened(tmp_path / "runs" / "one") as run:
        for model in ("zoo:a", "zoo:b"):
            point = LatencyPoint(model=model, batch=1, image=32, precision="fp32", device="cpu")
            run.append(LatencyFailed(point=point, why="out of memory", tried=True, message="too large"))
        run.append(measured("zoo:a"))
    (found,) = list_runs(tmp_path / "runs")
    assert (found.num_models, found.num_failures) == (1, 1)


def test_a_memo_survives_damage_by_forgetting() -> None:
    asked = []

    def find_out() -> int:
        asked.append(1)
        return 42

    for _ in range(2):  # two processes, as it were
        memo = Memo("facts")
        assert [memo.recall("answer", find_out), memo.recall("answer", find_out)] == [42, 42]
    assert len(asked) == 1
    memo.path.write_bytes(memo.path.read_bytes() + b'\n{"half a li')
    assert Memo("facts").recall("question", lambda: "why") == "why"
    again = Memo("facts")
    assert (again.recall("answer", find_out), again.recall("question", find_out), len(asked)) == (42, "why", 1)
    memo.path.write_bytes(b"{")
    assert (Memo("facts").recall("answer", find_out), len(asked)) == (42, 2)


def test_a_memo_that_cannot_be_written_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MODELHOUND_CACHE", str(tmp_path / "file" / "below"))
    assert Memo("facts").recall("answer", lambda: 1) == 1
    assert Memo("facts").recall("answer", lambda: 2) == 2


def test_a_folder_is_there_as_a_whole_and_what_a_kill_left_of_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "run" / ".epoch-1.123-456").mkdir(parents=True)
    (tmp_path / "run" / ".epoch-1.123-456" / "weights").write_text("some")
    (tmp_path / "run" / ".epoch-11.123-456").mkdir()

    def fill(folder: Path) -> None:
        (folder / "tokenizer").mkdir()
        (folder / "tokenizer" / "words").write_text("all")

    write_folder(tmp_path / "run" / "epoch-1", fill)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"epoch-1", ".epoch-11.123-456"}
    assert (tmp_path / "run" / "epoch-1" / "tokenizer" / "words").read_text() == "all"
