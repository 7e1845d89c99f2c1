"""One short fine-tuning after the other: what is learned from, what is tested, and what is left after a kill."""

import dataclasses
import os
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from finals_networks import write_coloured, write_networks
from modelhound.analysis.trials import draw_folds
from modelhound.data import InputForm, open_dataset
from modelhound.errors import BrokenItemError
from modelhound.finals import held_items, hourglass, trials
from modelhound.finals.held_items import HeldItems
from modelhound.finals.job import FinalsJob
from modelhound.finals.trial_pool import TrialPool
from modelhound.finals.trials import Classroom, TrialRequest, TrialResult, run_trial
from modelhound.launch import Outcome, Worker
from modelhound.meter import seconds_now
from modelhound.records import unpack_items
from modelhound.settings import ModelSettings, SearchSettings
from report_runs import measure
from tiny_encoders import write_encoder
from warm_workers import start_worker


@pytest.fixture
def networks() -> dict[str, str]:
    return write_networks(Path.cwd())


@pytest.fixture
def room(tmp_path: Path) -> Classroom:
    dataset = open_dataset(str(write_coloured(tmp_path / "coloured", noise=20.0)))
    folds = draw_folds(dataset.targets, seed=0)
    return Classroom(dataset, folds, HeldItems(dataset, "cpu"))


def request(model: str, **options: object) -> TrialRequest:
    asked: dict[str, object] = {
        "model": model,
        "model_settings": ModelSettings(models=(model,)),
        "rate": 0.03,
        "fold": 0,
        "cycles": (4,),
        "device": "cpu",
        "seed": 0,
    }
    return TrialRequest(**(asked | options))  # type: ignore[arg-type]


def scores_of(result: TrialResult) -> np.ndarray:
    assert result.error == ""
    return unpack_items(result.item_scores)


def test_a_trial_tests_the_items_of_its_fold_and_learns_from_the_others(
    networks: dict[str, str], room: Classroom
) -> None:
    result = run_trial(request(networks["sharp"]), room)
    assert len(scores_of(result)) == len(room.tested_on(0)) == 20
    assert scores_of(result).mean() > 0.8
    assert result.num_steps == 4 * (40 // 8)


def test_a_network_that_sees_nothing_learns_nothing(networks: dict[str, str], room: Classroom) -> None:
    assert scores_of(run_trial(request(networks["blind"]), room)).mean() < 0.6


def test_items_of_no_fold_are_tested_on_and_never_learned_from(networks: dict[str, str], room: Classroom) -> None:
    folds = room.folds.copy()
    folds[:9] = -1
    other = dataclasses.replace(room, folds=folds)
    assert not set(other.learned_from(0)) & set(range(9))
    assert len(other.learned_from(-1)) == len(folds) - 9
    assert len(scores_of(run_trial(request(networks["sharp"], fold=-1), other))) == 9


def test_the_same_trial_gives_the_same_scores(networks: dict[str, str], room: Classroom) -> None:
    first, second = (run_trial(request(networks["sharp"]), room) for _ in range(2))
    assert (first.item_scores, first.loss) == (second.item_scores, second.loss)


def test_a_stage_goes_on_from_the_one_before_and_begins_anew_where_that_is_gone(
    networks: dict[str, str], room: Classroom, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    asked = request(networks["sharp"], cycles=(2, 4), folder=str(folder))
    run_trial(msgspec.structs.replace(asked, cycles=(2,)), room)
    gone_on = run_trial(asked, room)
    assert gone_on.num_steps == 4 * (40 // 8)
    assert Path(gone_on.checkpoint).name == "epoch-00006"  # two and four of them
    shutil.rmtree(folder)
    anew = run_trial(asked, room)
    assert anew.loss == pytest.approx(gone_on.loss)
    # a kill after the checkpoint was written and before the result was: the stage is run again, and not on top of itself
    again = run_trial(asked, room)
    assert again.loss == pytest.approx(gone_on.loss)
    # of a stage that was damaged since, nothing is used
    shutil.rmtree(folder)
    run_trial(msgspec.structs.replace(asked, cycles=(2,)), room)
    damaged = bytearray((folder / "epoch-00002" / "head.safetensors").read_bytes())
    damaged[-2] ^= 64
    (folder / "epoch-00002" / "head.safetensors").write_bytes(damaged)
    assert run_trial(asked, room).loss == pytest.approx(gone_on.loss)


def test_a_loss_that_is_no_number_is_told_and_not_raised(networks: dict[str, str], room: Classroom) -> None:
    result = run_trial(request(networks["exploding"]), room)
    assert result.error == (
        "cannot go on training: expected a finite loss, found nan at step 1; this short fine-tuning, at a learning rate of "
        "0.03, came to nothing; leave this model out; hound train takes a lower --rate for it"
    )
    assert result.item_scores == b""


def test_more_bits_are_advised_only_where_fewer_were_used(networks: dict[str, str], room: Classroom) -> None:
    advised = [
        "--precision fp32" in run_trial(request(networks["exploding"], precision=precision), room).error
        for precision in ("fp32", "bf16")
    ]
    assert advised == [False, True]


def test_a_loss_that_is_no_number_on_the_tested_items_is_told_and_not_raised(
    networks: dict[str, str], room: Classroom
) -> None:
    result = run_trial(request(networks["spoiled"]), room)
    assert "expected a finite loss, found nan on the items it is tested on" in result.error
    assert (result.item_scores, result.loss) == (b"", 0.0)


@pytest.mark.parametrize("change", ["items", "folds", "weights", "precision"])
def test_a_stage_does_not_go_on_from_one_of_other_items_or_weights(
    networks: dict[str, str], room: Classroom, tmp_path: Path, change: str
) -> None:
    asked = request(networks["sharp"], cycles=(1, 1), folder=str(tmp_path / "checkpoints"), stamp="a", precision="fp32")
    run_trial(msgspec.structs.replace(asked, cycles=(1,)), room)
    if change == "items":
        others = open_dataset(str(write_coloured(tmp_path / "others", noise=10.0)))
        room = dataclasses.replace(room, dataset=others, held=HeldItems(others, "cpu"))
    elif change == "folds":
        room = dataclasses.replace(room, folds=np.roll(room.folds, 1))
    else:
        asked = msgspec.structs.replace(asked, **({"stamp": "b"} if change == "weights" else {"precision": "auto"}))
    changed = run_trial(asked, room)
    anew = run_trial(msgspec.structs.replace(asked, folder=str(tmp_path / "anew")), room)
    assert (changed.error, changed.loss, changed.item_scores) == ("", anew.loss, anew.item_scores)


def test_a_probe_tells_seconds_per_item(networks: dict[str, str], room: Classroom) -> None:
    result = run_trial(request(networks["sharp"], probe=True), room)
    assert result.error == ""
    assert result.seconds > 0


def test_a_probe_tells_what_it_has_seen_even_where_time_is_up(networks: dict[str, str], room: Classroom) -> None:
    """Or an epoch would be taken to cost nothing, where a busy machine comes late to begin with it."""
    result = run_trial(request(networks["sharp"], probe=True, seconds_left=-1.0), room)
    assert (result.error, result.is_given_up, result.num_steps) == ("", False, 1)
    assert result.seconds > 0


def test_decoding_all_items_once_is_no_part_of_what_learning_from_one_takes(
    networks: dict[str, str], room: Classroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the first network probed would seem too slow for a budget in seconds, and with it the others of its kind."""
    now = [0.0]

    def look() -> float:
        now[0] += 1.0
        return now[0]

    def decode(held: HeldItems, form: InputForm) -> Any:
        now[0] += 500.0
        return plain(held, form)

    plain = HeldItems._decode
    monkeypatch.setattr(HeldItems, "_decode", decode)
    for module in (hourglass, trials):
        monkeypatch.setattr(module, "seconds_now", look)
    result = run_trial(request(networks["sharp"], probe=True, seconds_left=30.0), room)
    assert now[0] > 500
    assert (result.error, result.num_steps, result.seconds) == ("", 2, 1 / 8)  # a look at the clock for each batch of 8


def test_the_largest_seed_that_a_search_takes_is_taken_by_every_trial(
    networks: dict[str, str], room: Classroom
) -> None:
    seed = SearchSettings("digits", seed=(1 << 32) - 1).seed
    assert run_trial(request(networks["sharp"], seed=seed, cycles=(1,)), room).error == ""


def test_items_that_do_not_fit_into_memory_are_streamed_with_the_same_result(
    networks: dict[str, str], room: Classroom
) -> None:
    streaming = dataclasses.replace(room, held=HeldItems(room.dataset, "cpu", most_bytes=0))
    held, streamed = (run_trial(request(networks["sharp"]), each) for each in (room, streaming))
    assert streamed.loss == pytest.approx(held.loss, rel=1e-4)
    assert streamed.item_scores == held.item_scores


def test_processes_share_the_memory_that_one_would_have_for_items(
    room: Classroom, networks: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_trial(request(networks["sharp"], probe=True), room)
    assert room.held._held_bytes() > 0
    with TrialPool(room, num_processes=1):
        assert room.held._held_bytes() == 0
    monkeypatch.setattr(held_items, "available_memory", lambda: 10**9)  # what is free changes from moment to moment
    alone, among_four = (HeldItems(room.dataset, "cpu", num_holders=count)._most_bytes for count in (1, 4))
    assert (alone, among_four) == (2 * 10**8, 5 * 10**7)


@pytest.mark.usefixtures("warm_workers")
def test_processes_give_what_this_one_gives(networks: dict[str, str], room: Classroom) -> None:
    requests = [request(networks[name], fold=fold) for name in ("sharp", "exploding") for fold in (0, 1)]
    found: dict[int, TrialResult] = {}
    with TrialPool(room, num_processes=1) as pool:
        pool.run(requests, found.__setitem__)
    for place, asked in enumerate(requests):
        here = run_trial(asked, room)
        assert (found[place].item_scores, found[place].error) == (here.item_scores, here.error)


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("num_processes", [0, 1])
def test_nothing_is_begun_when_time_is_up(num_processes: int, networks: dict[str, str], room: Classroom) -> None:
    found: dict[int, TrialResult] = {}
    with TrialPool(room, num_processes=num_processes) as pool:
        pool.run([request(networks["sharp"])] * 9, found.__setitem__, until=seconds_now())
    assert found[0].is_given_up
    assert len(found) < 9
    assert {result.item_scores for result in found.values()} == {b""}


def test_an_error_that_is_not_the_trials_keeps_its_kind(
    networks: dict[str, str], room: Classroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever searches starts again without an item that turns out to be broken, and with nothing else."""
    answer = Outcome(ok=False, ending="raised BrokenItemError", value="cannot decode 'a.png'", last_words="")
    monkeypatch.setattr(Worker, "call", lambda self, *given, **more: answer)
    with TrialPool(room, num_processes=1) as pool, pytest.raises(BrokenItemError, match="cannot decode"):
        pool.run([request(networks["sharp"])], lambda place, result: None)


def test_nothing_is_begun_again_when_the_pool_is_left_in_the_middle(
    networks: dict[str, str], room: Classroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C, or an error of another trial: the processes end with the pool, and nobody takes that for a death."""
    calls: list[int] = []
    both_run, is_left, lock = threading.Event(), threading.Event(), threading.Lock()

    def call(worker: Worker, *given: object, **more: object) -> Outcome:
        with lock:
            calls.append(1)
            is_first = len(calls) == 1
        if is_first:
            both_run.wait(60)
            return Outcome(ok=True, ending="returned", value={}, last_words="")
        both_run.set()
        is_left.wait(60)
        return Outcome(ok=False, ending="SIGKILL", value=None, last_words="")

    def stop(place: int, result: TrialResult) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "call", call)
    monkeypatch.setattr(Worker, "retire", lambda worker: is_left.set())
    with pytest.raises(KeyboardInterrupt), TrialPool(room, num_processes=2) as pool:
        pool.run([request(networks["sharp"])] * 2, stop)
    for thread in threading.enumerate():
        if "_serve" in thread.name:
            thread.join(60)
    assert len(calls) == 2


@pytest.mark.parametrize("num_stopped", [1, 2])
def test_a_process_that_stops_is_ended_in_time_and_its_trial_begun_again(
    num_stopped: int, networks: dict[str, str], room: Classroom, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP: it does not die and does not answer. If the second one stops, too, that is told as an error that will pass."""
    stopped: list[int] = []

    def start_and_stop(worker: Worker) -> None:
        start_worker(worker)
        if len(stopped) < num_stopped:
            assert worker._child is not None
            os.kill(worker._child.pid, signal.SIGSTOP)
            stopped.append(worker._child.pid)

    monkeypatch.setattr(Worker, "_start", start_and_stop)
    monkeypatch.setattr(
        TrialPool, "_deadline_seconds", lambda pool, request: 60.0 if len(stopped) == num_stopped else 0.2
    )
    asked = request(networks["sharp"])
    found: dict[int, TrialResult] = {}
    with TrialPool(room, num_processes=1) as pool:
        pool.run([asked], found.__setitem__)
    if num_stopped == 1:
        assert found[0].item_scores == run_trial(asked, room).item_scores
    else:
        assert (found[0].error, found[0].try_again) == ("its process ended: timed out", True)


@pytest.mark.parametrize(("expected_seconds", "deadline"), [(0.0, 900.0), (60.0, 2400.0), (3600.0, 144_000.0)])
def test_a_trial_has_ten_times_the_time_that_it_is_expected_to_take(
    expected_seconds: float, deadline: float, networks: dict[str, str], room: Classroom
) -> None:
    with TrialPool(room, num_processes=4) as pool:
        asked = request(networks["sharp"], expected_seconds=expected_seconds)
        assert pool._deadline_seconds(asked) == deadline


def test_texts_are_held_as_tokens_and_cut_to_the_longest(tmp_path: Path) -> None:
    encoder = write_encoder(tmp_path / "encoder")
    dataset = open_dataset("sms", limit=40)
    model = f"file:{encoder}"
    room = Classroom(dataset, draw_folds(dataset.targets, seed=0), HeldItems(dataset, "cpu"))
    result = run_trial(request(model, cycles=(1,), model_settings=ModelSettings(models=(model,), tokens=16)), room)
    assert len(scores_of(result)) == len(room.tested_on(0))
    assert 0 < result.loss < 5


def test_no_two_finalists_share_a_folder(tmp_path: Path, room: Classroom) -> None:
    """Or each would throw away what the other has learned, and the last one's weights could be handed out as the winner's."""
    names = [f"file:{tmp_path}/nets/a/1", f"file:{tmp_path}/nets/a-1", f"file:{'long/' * 60}"]
    generator = np.random.default_rng(0)
    job = FinalsJob(
        finalists=[measure(name, place, 3, 40, generator) for place, name in enumerate(names)],
        scorer="ridge",
        num_candidates=3,
        dataset=room.dataset,
        settings=SearchSettings(data="photos", models=tuple(names)),
        device="cpu",
        folder=tmp_path,
        known=(),
        tell=lambda record: None,
    )
    folders = [job.checkpoints(name) for name in names]
    assert len(set(folders)) == 3
    for folder in folders:
        folder.mkdir(parents=True)
        assert folder.parent == tmp_path / "finals"
