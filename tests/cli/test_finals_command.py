"""`hound search --finals` as a person meets it: the winner, ties, noise, bad input, kills."""

import functools
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from finals_networks import write_coloured, write_networks
from modelhound import cli
from modelhound.finals.trial_pool import TrialPool
from modelhound.finals.trials import Classroom, TrialRequest, TrialResult, run_trial
from modelhound.records import Finalist, TrialDone
from modelhound.settings import SearchSettings
from modelhound.store import read_run
from modelhound.verbs.search import run_search


@pytest.fixture
def networks() -> dict[str, str]:
    return write_networks(Path.cwd())


@pytest.fixture
def coloured(tmp_path: Path) -> Path:
    return write_coloured(tmp_path / "coloured")


def hound(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.run(argv)
    captured = capsys.readouterr()
    return code, captured.out, " ".join(captured.err.split())


def search(capsys: pytest.CaptureFixture[str], data: Path | str, models: list[str], *more: str) -> dict[str, Any]:
    code, out, err = hound(capsys, "search", str(data), "--models", ",".join(models), "--json", *more)
    assert code == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_the_network_that_learns_best_wins_and_leaves_a_checkpoint(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [networks[name] for name in ("sharp", "dull", "dim", "blind")]
    document = search(capsys, coloured, chosen, "--finals", "3", "--finals-budget", "100%", "--run", "raced")
    finals = document["finals"]
    assert finals["winner"] == networks["sharp"]
    assert finals["verdict"] == "won"
    first = finals["finalists"][0]
    low, high = first["interval"]
    assert low < first["predicted"] < high <= 1
    assert len(finals["finalists"]) == 3
    assert first["predicted"] > max(row["predicted"] for row in finals["finalists"][1:])
    assert 0 < finals["spent_seconds"] <= finals["budget_seconds"]
    assert (Path("raced") / finals["checkpoint"] / "model.safetensors").is_file()
    assert read_run(Path("raced")).headline == networks["sharp"]


def test_the_table_says_who_won_what_it_rests_on_and_what_it_took(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = ",".join(networks[name] for name in ("sharp", "blind"))
    code, out, _ = hound(capsys, "search", str(coloured), "--models", chosen, "--finals", "2", "--finals-budget", "90s")
    said = " ".join(out.split())
    assert code == 0
    assert " after 20 " in said
    assert "wins the finals" in said
    assert "epochs of fine-tuning, tested on 20 items" in said
    assert "that fine-tuning every model would take" in said
    assert "Fine-tune it: hound train" in said
    assert "Or go on from its checkpoint of the finals, which learned from a part of the items: hound train" in said
    told = re.search(r"This rests on (\d+) of 20 epochs", said)
    assert told is not None
    assert f"/epoch-{int(told[1]):05}/" in said


def test_what_was_trained_is_not_trained_again(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [networks[name] for name in ("sharp", "dull")]
    options = ("--finals", "2", "--finals-budget", "100%", "--run", "raced")
    first = search(capsys, coloured, chosen, *options)
    assert first["finals"]["winner"] == networks["sharp"], first
    trained = read_run(Path("raced")).of(TrialDone)
    second = search(capsys, coloured, chosen, *options)
    assert read_run(Path("raced")).of(TrialDone) == trained
    assert second["finals"] == first["finals"]


def test_a_race_that_was_stopped_goes_on_with_the_trials_that_are_missing(
    networks: dict[str, str], coloured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from modelhound.finals import trial_pool

    settings = SearchSettings(
        str(coloured),
        models=(networks["sharp"], networks["dull"]),
        finals="2",
        finals_budget="100%",
        run=Path("raced"),
    )
    whole = run_search(SearchSettings(**{**_fields(settings), "run": Path("whole")}))
    run_trial, count = trial_pool.run_trial, 0

    def stop_at_the_seventh(request: Any, room: Any) -> Any:
        nonlocal count
        count += 1
        if count == 7:
            raise KeyboardInterrupt
        return run_trial(request, room)

    monkeypatch.setattr(trial_pool, "run_trial", stop_at_the_seventh)
    with pytest.raises(KeyboardInterrupt):
        run_search(settings)
    monkeypatch.setattr(trial_pool, "run_trial", run_trial)
    done = len(read_run(Path("raced")).of(TrialDone))
    assert 0 < done < len(read_run(Path("whole")).of(TrialDone))
    finals = run_search(settings).ranking.finals
    assert finals is not None
    assert whole.ranking.finals is not None
    assert [_numbers(row) for row in finals.finalists] == [_numbers(row) for row in whole.ranking.finals.finalists]


@pytest.mark.parametrize("failing", [(3,), (3, 4, 5, 6, 7, 8, 9, 10), (6, 7)])
def test_a_trial_that_memory_ran_out_for_is_made_up_for_by_the_next_start(
    failing: tuple[int, ...], networks: dict[str, str], coloured: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else was tried in its place: the race ends as if memory had sufficed."""
    from modelhound.finals import trials

    asked = {"models": (networks["sharp"], networks["dull"]), "finals": "2", "finals_budget": "100%"}
    whole = run_search(SearchSettings(str(coloured), run=Path("whole"), **asked)).ranking.finals  # type: ignore[arg-type]
    settings = SearchSettings(str(coloured), run=Path("raced"), **asked)  # type: ignore[arg-type]
    run_stages, count = trials._run_stages, 0

    def run_out_of_memory(*asked: Any) -> Any:
        nonlocal count
        count += 1
        if count in failing:
            raise MemoryError
        return run_stages(*asked)

    with monkeypatch.context() as patch:
        patch.setattr(trials, "_run_stages", run_out_of_memory)
        run_search(settings)
    finals = run_search(settings).ranking.finals
    assert whole is not None
    assert finals is not None
    assert any(trial.try_again for trial in read_run(Path("raced")).of(TrialDone))
    assert [_numbers(row) for row in finals.finalists] == [_numbers(row) for row in whole.finalists]


def _fields(settings: SearchSettings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in SearchSettings.__dataclass_fields__ if name != "_"}


def _numbers(row: Finalist) -> tuple[Any, ...]:
    return row.model, row.state, row.score, row.num_epochs, row.rate, row.chance, row.predicted


def test_shuffled_labels_end_with_cannot_tell_and_no_name(
    networks: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    noise = write_coloured(tmp_path / "noise", per_class=30, shuffled=True)
    chosen = [networks[name] for name in ("sharp", "dull", "dim")]
    document = search(capsys, noise, chosen, "--finals", "3", "--finals-budget", "100%", "--run", "raced")
    assert document["finals"]["verdict"] == "cannot tell"
    assert document["finals"]["winner"] is None
    assert document["finals"]["checkpoint"] is None
    assert read_run(Path("raced")).headline == "no finalist is better than guessing"
    _, out, _ = hound(
        capsys,
        "search",
        str(noise),
        "--models",
        ",".join(chosen),
        "--finals",
        "3",
        "--finals-budget",
        "100%",
        "--run",
        "raced",
    )
    assert "Cannot tell" in out
    assert "suits" not in out
    assert "wins" not in out


def test_finals_of_networks_with_random_weights_say_that_these_tell_nothing_of_trained_ones(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = networks["sharp"].split(":")[1]
    with Path(file).open("a") as code:
        code.write(
            "\n\ndef one(pretrained=True):\n    return sharp()\n\n\ndef two(pretrained=True):\n    return dull()\n"
        )
    code, out, err = hound(
        *(capsys, "search", str(coloured), "--models", f"py:{file}:one,py:{file}:two", "--weights", "random"),
        *("--finals", "2", "--finals-budget", "90s"),
    )
    assert code == 0, err
    assert "Finals took" in out
    assert out.count("All weights are random: this says nothing of trained models.") == 1


def test_a_finalist_that_diverges_is_a_failure_and_the_others_go_on(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [networks[name] for name in ("exploding", "sharp", "dull")]
    document = search(capsys, coloured, chosen, "--finals", "3", "--finals-budget", "100%")
    assert document["finals"]["winner"] == networks["sharp"]
    (failure,) = document["failures"]
    assert (failure["model"], failure["phase"]) == (networks["exploding"], "finals")
    assert "finite loss" in failure["error"]
    # a search has no --rate, and on a CPU it is fp32 already
    assert failure["error"].endswith("leave this model out; hound train takes a lower --rate for it")
    assert "kept" not in failure["error"]
    states = {row["model"]: row["state"] for row in document["finals"]["finalists"]}
    assert states[networks["exploding"]] == "failed"


def test_fewer_than_ten_items_of_a_class_are_refused_before_anything_runs(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in sorted((coloured / "blue").iterdir())[9:]:
        file.unlink()
    code, _, err = hound(
        capsys, "search", str(coloured), "--models", networks["sharp"], "--finals", "2", "--run", "never"
    )
    assert code == 2
    assert "expected at least 10 items of every class, found 9 of 'blue'" in err
    assert not Path("never").exists()


def test_a_label_missing_from_a_fold_is_refused(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Path("labels.csv")
    rows = [
        f"{file},{file.parent.name}{';rare' if place == 0 else ''}"
        for place, file in enumerate(coloured.rglob("*.png"))
    ]
    table.write_text("\n".join(["image,label", *rows]))
    code, _, err = hound(
        capsys, "search", str(table), "--task", "multilabel", "--models", networks["sharp"], "--finals", "2"
    )
    assert code == 2
    assert "expected items of 'rare' in every fold" in err


def test_a_budget_too_small_for_one_rung_says_what_is_needed_and_the_search_is_not_lost(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [networks[name] for name in ("sharp", "dull")]
    document = search(capsys, coloured, chosen, "--finals", "2", "--finals-budget", "0.0001s", "--run", "searched")
    assert document["finals"] is None
    assert any("expected a budget for one rung at least, about" in note for note in document["notes"])
    assert [row["model"] for row in document["ranking"]] == chosen
    assert read_run(Path("searched")).headline == networks["sharp"]


def test_several_at_once_lose_no_checkpoint_and_are_booked_with_the_time_they_took(
    networks: dict[str, str], coloured: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from modelhound.finals import holding

    sizes: list[int] = []
    monkeypatch.setattr(holding._Finals, "_choose_processes", lambda self, race: 3)
    monkeypatch.setattr(holding, "TrialPool", functools.partial(_AtOnce, sizes))
    chosen = [networks[name] for name in ("sharp", "dull")]
    document = search(capsys, coloured, chosen, "--finals", "2", "--finals-budget", "100%", "--run", "raced")
    trials = read_run(Path("raced")).of(TrialDone)
    assert not any(trial.error for trial in trials)
    assert (Path("raced") / document["finals"]["checkpoint"] / "model.safetensors").is_file()
    assert [trial.at_once for trial in trials] == [min(3, size) for size in sizes for _ in range(size)]
    assert min(sizes) < 3


class _AtOnce(TrialPool):
    """Checkpoints of a rung are there before any of its results is told, as when all of it runs at once."""

    def __init__(self, sizes: list[int], room: Classroom, *, num_processes: int = 0) -> None:
        super().__init__(room)
        self.num_processes, self._sizes = num_processes, sizes

    def __enter__(self) -> Self:
        return self

    def run(
        self,
        requests: Sequence[TrialRequest],
        done: Callable[[int, TrialResult], None],
        *,
        until: float | None = None,
    ) -> None:
        if self.num_processes:
            self._sizes.append(len(requests))
        for place, result in enumerate([run_trial(request, self._room) for request in requests]):
            done(place, result)


def test_one_model_alone_has_no_finals(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = search(capsys, coloured, [networks["sharp"]], "--finals", "auto")
    assert document["finals"] is None
    assert any("finals need two models" in note for note in document["notes"])


def test_auto_takes_as_many_as_the_budget_allows(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [networks[name] for name in ("sharp", "dull", "dim", "blind")]
    document = search(capsys, coloured, chosen, "--finals", "auto", "--finals-budget", "6%")
    assert 2 <= len(document["finals"]["finalists"]) < 4


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--finals", "1"], "expected auto or a whole number of at least 2"),
        (["--finals", "some"], "expected auto or a whole number of at least 2"),
        (["--finals-budget", "20%"], "without --finals"),
        (["--finals", "2", "--finals-budget", "120"], "such as 15% or 0.15, or seconds, such as 120s"),
        (["--finals", "2", "--finals-budget", "140%"], "a share of up to 100%"),
        (["--finals", "2", "--explain"], "cannot use --finals with --explain"),
        (["--finals", "2", "--memory", "1GB"], "cannot use --memory with --finals"),
    ],
)
def test_bad_options_are_refused(options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hound(capsys, "search", "digits", *options)
    assert code == 2
    assert complaint in err


def test_the_winners_checkpoint_can_be_searched_again(
    networks: dict[str, str], coloured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [networks[name] for name in ("sharp", "blind")]
    document = search(capsys, coloured, chosen, "--finals", "2", "--finals-budget", "100%", "--run", "raced")
    saved = document["finals"]["read_back"]
    again = search(capsys, coloured, [saved["model"]], "--arch", saved["arch"])
    assert again["ranking"][0]["score"] > 0.7
    shutil.rmtree("raced")
