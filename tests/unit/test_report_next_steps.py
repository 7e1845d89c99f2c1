"""What a page says to do next: command lines that the command itself takes."""

import shlex
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from modelhound.cli import app
from modelhound.records import Failure, FinalsAnswer, Ranking, SavedModel
from modelhound.report.next_steps import after_latency, after_loader, after_profile, after_search, after_train
from modelhound.report.pages import build_page
from modelhound.report.search_view import SearchView, view_search
from modelhound.store import read_run
from report_runs import write_search
from verb_runs import write_verb_runs


def searched(path: Path, *, num_items: int = 120, finals: FinalsAnswer | None = None) -> SearchView:
    view = view_search(read_run(write_search(path, ["zoo:a", "zoo:b", "zoo:c"], num_items=num_items)))
    ranking: Ranking = msgspec.structs.replace(view.ranking, finals=finals)
    return SearchView(run=view.run, ranking=ranking, measured=view.measured, dropped=(), certainty=None)


def undecided(**changes: object) -> FinalsAnswer:
    finals = FinalsAnswer(
        verdict="tied",
        ended="budget",
        winner="zoo:b",
        finalists=(),
        metric="accuracy",
        confidence=0.9,
        full_epochs=20,
        budget_seconds=20.4,
        spent_seconds=18.0,
        full_seconds=400.0,
    )
    return msgspec.structs.replace(finals, **changes)


def test_every_command_of_every_page_is_taken_by_the_command_itself(tmp_path: Path) -> None:
    paths = [*write_verb_runs(tmp_path).values(), write_search(tmp_path / "search", ["zoo:a", "zoo:b"], num_items=40)]
    runs = [read_run(path) for path in paths]
    runs[0] = msgspec.structs.replace(runs[0], settings={"models": ["timm:x"]})  # latency has no data
    steps = [step for run in runs for step in build_page([run]).next_steps]
    assert len(steps) >= len(runs)
    for label, line in steps:
        words = shlex.split(line)
        assert words[0] == "hound", label
        app.parse_args(words[1:], exit_on_error=False, print_error=False)  # raises what it does not understand


def test_what_is_offered_keeps_to_the_precision_and_device_that_were_asked_for(tmp_path: Path) -> None:
    run = read_run(write_verb_runs(tmp_path)["profile"])
    asked = {**run.settings, "precision": "bf16", "device": ["cpu"]}
    asking = msgspec.structs.replace(run, settings=asked)
    for bottleneck in ("data", "forward", "weights"):
        ((_, line),) = after_profile(asking, bottleneck=bottleneck, models=("zoo:a",))
        assert shlex.split(line)[-4:] == ["--precision", "bf16", "--device", "cpu"]
    several = msgspec.structs.replace(run, settings={**asked, "precision": "auto", "device": ["cpu", "cuda"]})
    ((_, line),) = after_profile(several, bottleneck="data", models=("zoo:a",))
    assert "--device" not in line, "hound loader takes one"
    assert "--precision" not in line
    ((_, line),) = after_train(asking, model="zoo:a", bound="data-bound")
    assert line.endswith("--precision bf16 --device cpu")


def test_what_is_offered_does_the_same_to_the_models(tmp_path: Path) -> None:
    """What each verb leaves out is its own default: random in latency, pretrained in all that rank or train."""
    view = searched(
        tmp_path / "search", finals=undecided(read_back=SavedModel(model="file:a.safetensors", arch="zoo:b"))
    )
    drawn = msgspec.structs.replace(
        view.run, settings={**view.run.settings, "weights": "random", "seed": 3, "layers": "mean"}
    )
    (_, train), (_, checkpoint), (_, again) = after_search(replace(view, run=drawn))
    assert train == "hound train fashion --model zoo:b --weights random --seed 3"
    assert "random" not in checkpoint, "its own weights are what it is for"
    assert "--weights random" in again
    assert "--layers mean" in again
    run = read_run(write_verb_runs(tmp_path)["profile"])

    def profiled(weights: str, bottleneck: str) -> str:
        asking = msgspec.structs.replace(run, settings={"data": "x", "weights": weights, "pooling": "cls"})
        ((_, line),) = after_profile(asking, bottleneck=bottleneck, models=("zoo:a",))
        return line

    assert profiled("random", "data") == "hound loader x --models zoo:a --weights random --pooling cls"
    assert profiled("random", "weights") == "hound search x --models zoo:a --weights random --pooling cls --explain"
    assert profiled("random", "forward") == "hound latency --models zoo:a"
    assert profiled("pretrained", "forward") == "hound latency --models zoo:a --weights pretrained"
    loader = msgspec.structs.replace(run, settings={"data": "x", "models": ["zoo:a"], "weights": "random"})
    ((_, line),) = after_loader(loader)
    assert line == "hound search x --models zoo:a --weights random"
    ((_, line),) = after_train(loader, model="zoo:a", bound="data-bound")
    assert line == "hound loader x --models zoo:a --weights random"


def test_a_search_after_loader_is_over_the_same_models_and_no_others(tmp_path: Path) -> None:
    run = read_run(write_verb_runs(tmp_path)["loader"])
    asked = {"data": "x", "models": ["timm:*"], "where": "params < 5e6", "out": None}
    ((_, line),) = after_loader(msgspec.structs.replace(run, settings=asked))
    assert shlex.split(line) == ["hound", "search", "x", "--models", "timm:*", "--where", "params < 5e6"]


def test_a_tie_offers_finals_and_a_clear_winner_does_not(tmp_path: Path) -> None:
    clear = after_search(searched(tmp_path / "clear", num_items=4000))
    assert [label for label, _ in clear] == ["Fine-tune it on all items"]
    tied = after_search(searched(tmp_path / "tied", num_items=8))
    assert tied[1] == (
        "Or see what short fine-tuning tells of the 2 that share rank 1",
        "hound search fashion --limit 8 --models zoo:a,zoo:b,zoo:c --finals auto",
    )


def test_finals_are_offered_only_as_a_search_that_is_not_refused(tmp_path: Path) -> None:
    view = searched(tmp_path / "tied", num_items=8)

    def offered(**asked: object) -> list[str]:
        run = msgspec.structs.replace(view.run, settings={**view.run.settings, **asked})
        return [line for _, line in after_search(replace(view, run=run))]

    assert offered(memory="4GB")[1:] == ["hound search fashion --limit 8 --models zoo:a,zoo:b,zoo:c --finals auto"], (
        "a limit does not go with finals"
    )
    assert len(offered(on="local")) == 2
    assert len(offered(on="ray")) == 1, "nor does a cluster"


def test_no_training_is_offered_where_no_model_is_better_than_guessing(tmp_path: Path) -> None:
    view = searched(tmp_path / "guessing")
    view = replace(view, ranking=msgspec.structs.replace(view.ranking, guess=0.5, is_guess_beaten=False))
    assert after_search(view) == (
        ("See whether all items tell more", "hound search fashion --models zoo:a,zoo:b,zoo:c"),
    )
    everything = msgspec.structs.replace(view.run, settings={**view.run.settings, "limit": None})
    assert after_search(replace(view, run=everything)) == ()


def test_finals_that_ran_out_of_time_can_go_on_and_their_checkpoint_too(tmp_path: Path) -> None:
    saved = SavedModel(model="file:runs/x y/model.safetensors", arch="zoo:b")
    steps = after_search(searched(tmp_path / "run", finals=undecided(read_back=saved)))
    assert [line for _, line in steps] == [
        "hound train fashion --model zoo:b",
        "hound train fashion --model 'file:runs/x y/model.safetensors' --arch zoo:b",
        "hound search fashion --limit 120 --models zoo:a,zoo:b,zoo:c --finals-budget 41s",
    ]
    view = searched(tmp_path / "named", finals=undecided())
    named = msgspec.structs.replace(view.run, settings={**view.run.settings, "run": "my run"})
    assert after_search(replace(view, run=named))[-1][1].endswith(" --finals-budget 41s --run 'my run'")
    assert len(after_search(searched(tmp_path / "won", finals=undecided(verdict="won", ended="certain")))) == 1
    assert (
        after_search(searched(tmp_path / "noise", finals=undecided(verdict="cannot tell", winner=None, ended="noise")))
        == ()
    )


def test_what_is_not_finished_goes_on_and_what_found_nothing_is_looked_into(tmp_path: Path) -> None:
    begun = build_page([read_run(write_search(tmp_path / "begun", ["zoo:a", "zoo:b"], finish=False))])
    assert [line for _, line in begun.next_steps] == ["hound search fashion --limit 120 --models zoo:a,zoo:b"]
    failed = build_page([read_run(write_search(tmp_path / "failed", [], failures=("zoo:a",)))])
    assert failed.next_steps == (), "the failure says itself what to do"
    view = searched(tmp_path / "unexplained")
    strange = Failure(model="zoo:a", phase="forward", error="RuntimeError: CUDA error: unknown error")
    nothing = msgspec.structs.replace(view.ranking, models=())
    records = (*view.run.records, strange)
    view = replace(view, ranking=nothing, run=msgspec.structs.replace(view.run, records=records))
    assert [line for _, line in after_search(view)] == ["hound doctor"]
    run = read_run(write_verb_runs(tmp_path)["train"])
    settings = {"data": "photos", "run": "my runs/one"}
    stopped = msgspec.structs.replace(run, answer=None, settings=settings)
    assert [line for _, line in build_page([stopped]).next_steps] == ["hound train photos --run 'my runs/one'"]


@pytest.mark.parametrize(
    ("bound", "line"),
    [
        ("data-bound", "hound loader photos --models timm:x"),
        ("cannot be told", "hound train photos --model timm:x --epochs 3"),
        ("model-bound", "hound search photos"),
    ],
)
def test_what_bounds_a_training_decides_what_to_do(tmp_path: Path, bound: str, line: str) -> None:
    run = read_run(write_verb_runs(tmp_path)["train"])
    settings = {"data": "photos", "model": ["timm:x"]}
    assert after_train(msgspec.structs.replace(run, settings=settings), model="timm:x", bound=bound)[0][1] == line


def test_whoever_asked_for_no_verdict_is_not_sent_to_train_for_longer(tmp_path: Path) -> None:
    run = read_run(write_verb_runs(tmp_path)["train"])
    settings = {"data": "photos", "model": ["timm:x"], "verdict": "none"}
    (step,) = after_train(msgspec.structs.replace(run, settings=settings), model="timm:x", bound="")
    assert step == ("See what bounds it", "hound train photos --model timm:x")


def test_latency_asks_for_what_would_tell_more(tmp_path: Path) -> None:
    run = read_run(write_verb_runs(tmp_path)["latency"])
    assert after_latency(run, bound="launch", num_untold=2)[0][1].endswith("--seconds 2")
    assert after_latency(run, bound="launch", num_untold=0)[0][1].endswith("--compile")
    assert f"--compare {run.path} --run {run.path}-later" in after_latency(run, bound="compute", num_untold=0)[0][1]
    patient = msgspec.structs.replace(run, settings={**run.settings, "seconds": 3000})
    assert after_latency(patient, bound="launch", num_untold=2)[0][1].endswith("--seconds 3600"), "more is refused"


def test_what_is_offered_after_timms_way_of_sampling_is_no_request_that_is_refused(tmp_path: Path) -> None:
    run = read_run(write_verb_runs(tmp_path)["latency"])
    asked = msgspec.structs.replace(run, settings={**run.settings, "sampling": "timm"})
    line = after_latency(asked, bound="launch", num_untold=2)[0][1]
    assert line.endswith("--seconds 2")
    assert "--sampling" not in line


@pytest.mark.parametrize("verdict", ["auto", "none"])
def test_of_cached_features_no_verdict_is_promised(tmp_path: Path, verdict: str) -> None:
    run = read_run(write_verb_runs(tmp_path)["train"])
    settings = {"data": "photos", "model": ["timm:x"], "mode": "cached", "verdict": verdict}
    (step,) = after_train(msgspec.structs.replace(run, settings=settings), model="timm:x", bound="")
    assert step[1] == "hound search photos"


def test_what_is_offered_names_whatever_its_models_cannot_be_built_without(tmp_path: Path) -> None:
    run = read_run(write_verb_runs(tmp_path)["loader"])
    asked = {"data": "texts.csv", "models": ["file:a.safetensors", "hf:x/y"], "arch": "zoo:b", "allow_code": ["x/y"]}
    asking = msgspec.structs.replace(run, settings={**asked, "tokens": 64})
    needed = "--arch zoo:b --allow-code x/y"
    ((_, line),) = after_loader(asking)
    assert line == f"hound search texts.csv --models file:a.safetensors,hf:x/y {needed} --tokens 64"
    ((_, line),) = after_train(asking, model="file:a.safetensors", bound="data-bound")
    assert line == f"hound loader texts.csv --models file:a.safetensors {needed} --tokens 64"
    ((_, line),) = after_profile(asking, bottleneck="forward", models=("file:a.safetensors",))
    assert line == f"hound latency --models file:a.safetensors {needed}"
    ((_, line),) = after_profile(asking, bottleneck="data", models=("hf:x/y",))
    assert "--arch" not in line, "refused where no file needs it"


@pytest.mark.parametrize(("bottleneck", "verb"), [("data", "loader"), ("forward", "latency"), ("weights", "search")])
def test_what_is_slow_decides_who_looks_closer(tmp_path: Path, bottleneck: str, verb: str) -> None:
    run = read_run(write_verb_runs(tmp_path)["profile"])
    (step,) = after_profile(run, bottleneck=bottleneck, models=("timm:x",))
    assert step[1].startswith(f"hound {verb} ")
    assert "--models timm:x" in step[1]
