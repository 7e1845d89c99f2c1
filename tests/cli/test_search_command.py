"""`hound search` as a person meets it: the document, the table, the exit codes, bad input."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import modelhound
from command_line import hound
from modelhound.cli.search import _show_foreseen
from modelhound.errors import ModelError
from modelhound.models import SOURCES
from modelhound.models.zoo import ZooSource
from modelhound.records import PlanMade, Progress, SearchForeseen
from modelhound.settings import ModelSettings

SMALL = ["--models", "zoo:mobilenet-rotation,zoo:resnet-glyphs", "--limit", "40"]
OWN = "zoo:mobilenet-rotation,zoo:resnet-glyphs,zoo:mixer-garments_a"
ZOO_FOLDER = Path(modelhound.__file__).parent / "models" / "weights"


@pytest.fixture
def own_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of three networks in a folder that a test may damage."""
    folder = tmp_path / "own_zoo"
    folder.mkdir()
    for name in ("mobilenet-rotation", "resnet-glyphs", "mixer-garments_a"):
        shutil.copy(ZOO_FOLDER / f"{name}.safetensors", folder)
    monkeypatch.setitem(SOURCES, "zoo", ZooSource(folder))
    return folder


def test_json_is_one_document_with_the_promised_keys(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hound(capsys, "search", "digits", *SMALL, "--json")
    document = json.loads(out)
    assert code == 0
    assert {"run", "data", "ranking", "failures", "phases"} <= set(document)
    assert (document["data"], document["failures"]) == ("digits", [])
    assert {"rank", "model", "score", "interval", "scores", "num_parameters", "seconds"} <= set(document["ranking"][0])
    assert {row["model"] for row in document["ranking"]} == {"zoo:mobilenet-rotation", "zoo:resnet-glyphs"}
    for row in document["ranking"]:
        low, high = row["interval"]
        assert 0 <= low <= row["score"] <= high <= 1
    assert set(document["phases"]) == {
        "read weights",
        "build model",
        "weights to device",
        "wait for data",
        "data to device",
        "forward",
        "score",
        "other",
    }
    assert sum(document["phases"].values()) == pytest.approx(sum(row["seconds"] for row in document["ranking"]))


def test_the_table_shows_ranks_the_control_and_where_time_went(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hound(capsys, "search", "digits", *SMALL)
    assert code == 0
    for expected in (
        "by size (control)",
        "suits digits best",
        "Kendall's tau",
        "model time went",
        "Everything measured is in",
    ):
        assert expected in out


def test_the_same_command_again_runs_nothing_again_and_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    _, first, _ = hound(capsys, "search", "digits", *SMALL, "--json")
    _, second, _ = hound(capsys, "search", "digits", *SMALL, "--json")
    assert json.loads(first) == json.loads(second)  # seconds and all: nothing was measured again
    _, shown, _ = hound(capsys, "search", "digits", *SMALL)
    assert "2 models were finished by an earlier start" in shown
    assert "another --run with --fresh measures anew" in " ".join(shown.split())
    _, elsewhere, _ = hound(capsys, "search", "digits", *SMALL, "--run", "other", "--json")
    _, anew, _ = hound(capsys, "search", "digits", *SMALL, "--run", "anew", "--fresh", "--json")
    assert not json.loads(elsewhere)["phases"].get("forward")
    assert json.loads(anew)["phases"]["forward"] > 0


def test_more_models_in_the_same_folder_cost_only_the_new_ones(capsys: pytest.CaptureFixture[str]) -> None:
    _, first, _ = hound(capsys, "search", "digits", *SMALL, "--run", "mine", "--json")
    more = ["--models", "zoo:mobilenet-rotation,zoo:resnet-glyphs,zoo:mixer-garments_a", "--limit", "40"]
    _, second, _ = hound(capsys, "search", "digits", *more, "--run", "mine", "--json")
    old = {row["model"]: row["seconds"] for row in json.loads(first)["ranking"]}
    new = {row["model"]: row["seconds"] for row in json.loads(second)["ranking"]}
    assert len(new) == 3
    assert {name: new[name] for name in old} == old


def test_another_limit_in_the_same_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    hound(capsys, "search", "digits", *SMALL, "--run", "mine")
    code, out, err = hound(capsys, "search", "digits", *SMALL[:3], "50", "--run", "mine")
    assert (code, out) == (2, "")
    assert "limit was 40, now 50" in err


def test_top_shortens_the_list_and_not_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = hound(capsys, "search", "digits", *SMALL, "--top", "1", "--json")
    document = json.loads(out)
    assert len(document["ranking"]) == 1
    stored = json.loads((Path(document["run"]) / "answer.json").read_text())
    assert len(stored["answer"]["models"]) == 2


def test_top_does_not_hide_ties(capsys: pytest.CaptureFixture[str]) -> None:
    request = ["search", "digits", "--models", "zoo:vit-glyphs,zoo:vit-glyphs-textures", "--limit", "40"]
    _, whole, _ = hound(capsys, *request)
    _, cut, _ = hound(capsys, *request, "--top", "1")
    assert "2 models share rank 1" in whole
    assert "2 models share rank 1" in cut


def test_square_brackets_in_a_name_are_shown_as_they_are(
    capsys: pytest.CaptureFixture[str], image_folder: Callable[..., Path]
) -> None:
    folder = image_folder(name="my[/b]photos[red]")
    code, out, _ = hound(capsys, "search", str(folder), *SMALL[:2])
    assert code == 0
    assert "my[/b]photos[red] best" in out.replace("\n", "")
    assert "…/b]photos[red]" in hound(capsys, "runs")[1]  # of a long path the last part


def test_a_plain_search_goes_on_without_an_image_that_vanishes_in_mid_run(
    image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    result = _search_while_an_image_vanishes(image_folder(), tmp_path / "run", plain=True)
    assert (result.num_items, result.failures, len(result.ranking.models)) == (23, (), 3)
    before = (tmp_path / "run" / "records.jsonl.before-0").read_text()
    assert '"num_items":24' in before  # a model that was measured with it is not ranked beside the others, but kept


def test_the_engine_has_read_every_image_before_one_vanishes(image_folder: Callable[..., Path], tmp_path: Path) -> None:
    result = _search_while_an_image_vanishes(image_folder(), tmp_path / "run", plain=False)
    assert (result.num_items, result.failures, len(result.ranking.models)) == (24, (), 3)


def _search_while_an_image_vanishes(folder: Path, run: Path, *, plain: bool) -> modelhound.SearchResult:
    def vanish(progress: Progress) -> None:
        if progress.task in ("models", "reading models") and progress.done == 1:
            (folder / "class1" / "003.png").unlink(missing_ok=True)

    return modelhound.search(str(folder), OWN, run=run, watch=vanish, plain=plain)


def test_random_weights_are_said_to_be_random(capsys: pytest.CaptureFixture[str]) -> None:
    request = ["search", "digits", *SMALL, "--weights", "random"]
    assert "All weights are random" in hound(capsys, *request)[1]
    assert json.loads(hound(capsys, *request, "--json")[1])["weights"] == "random"


def test_a_folder_named_like_an_embedded_set_is_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    Path("digits").mkdir()
    code, _, err = hound(capsys, "search", "digits", *SMALL)
    assert code == 0
    assert "say ./digits" in err


def test_models_may_be_repeated_or_comma_separated(capsys: pytest.CaptureFixture[str]) -> None:
    repeated = ["--models", "zoo:mobilenet-rotation", "--models", "zoo:resnet-glyphs", "--limit", "40"]
    _, first, _ = hound(capsys, "search", "digits", *SMALL, "--json")
    _, second, _ = hound(capsys, "search", "digits", *repeated, "--json")
    assert json.loads(first)["run"] == json.loads(second)["run"]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["search"], "without DATA: expected digits, fashion, sms or a path"),
        (["search", "digits", "--limt", "3"], "--limit"),
        (["search", "digits", "--limit", "many"], "many"),
        (["search", "digits", "--limit", "5"], "at least 20"),
        (["search", "digits", "--device", "tpu"], "expected auto, cpu, cuda"),
        (["search", "digits", "--scorers", "logme"], "at least one of ridge, knn, probe"),
        (["search", "digits", "--models", "zoo:resnet-glyps"], "did you mean zoo:resnet-glyphs"),
        (["search", "digits", "--models", "zoo:nothing*"], "no zoo model has that name"),
        (["search", "digits", "--models", "resnet18"], "did you mean timm:resnet18"),
        (["search", "fashon"], "fashion"),
        (["search", "no/such/folder"], "no/such/folder"),
        (["serch"], "did you mean search?"),
        (["models", "zoo:resnet-glyps"], "did you mean zoo:resnet-glyphs"),
        (["search", "digits", "--limit", "-1"], "at least 4"),
        (["search", "digits", "--top", "0"], "at least 1"),
        (["search", "digits", "--scorers", ""], "nothing behind it"),
        (["search", "digits", "--scorers", ","], "one or more of"),
        (["search", "digits", "--models", ","], "at least one reference"),
        (["runs", "no/such/folder"], "expected a folder"),
    ],
)
def test_a_request_that_cannot_be_served_exits_with_2_and_says_what_to_do(
    capsys: pytest.CaptureFixture[str], argv: list[str], expected: str
) -> None:
    code, out, err = hound(capsys, *argv)
    assert (code, out) == (2, "")
    assert expected in err
    assert "Traceback" not in err


def test_a_folder_of_photos_is_searched(capsys: pytest.CaptureFixture[str], image_folder: Callable[..., Path]) -> None:
    code, out, _ = hound(capsys, "search", str(image_folder()), *SMALL[:2], "--json")
    assert code == 0
    assert json.loads(out)["ranking"][0]["score"] > 0.8  # classes differ in brightness, which any network sees


def test_a_truncated_image_is_left_out_and_listed(
    capsys: pytest.CaptureFixture[str], image_folder: Callable[..., Path]
) -> None:
    folder = image_folder(per_class=12)
    bad = folder / "class1" / "000.png"
    bad.write_bytes(bad.read_bytes()[:200])
    code, out, _ = hound(capsys, "search", str(folder), *SMALL[:2], "--json")
    document = json.loads(out)
    assert code == 0
    assert document["num_items"] == 35
    assert [each["item"] for each in document["skipped"]] == ["class1/000.png"]


def test_a_cut_off_weight_file_fails_alone(capsys: pytest.CaptureFixture[str], own_zoo: Path) -> None:
    file = own_zoo / "resnet-glyphs.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    code, out, _ = hound(capsys, "search", "digits", "--models", OWN, "--limit", "40", "--json")
    document = json.loads(out)
    assert code == 0
    assert "zoo:mobilenet-rotation" in {row["model"] for row in document["ranking"]}
    assert [(each["model"], each["phase"]) for each in document["failures"]] == [("zoo:resnet-glyphs", "read weights")]
    assert "damaged" in document["failures"][0]["error"]


def rewrite(file: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    with safe_open(file, framework="numpy") as opened:
        metadata = opened.metadata()
    save_file(change(load_file(file)), file, metadata=metadata)


def test_weights_of_another_shape_fail_alone(capsys: pytest.CaptureFixture[str], own_zoo: Path) -> None:
    rewrite(
        own_zoo / "resnet-glyphs.safetensors",
        lambda w: {k: v[..., :1].contiguous() if v.ndim else v for k, v in w.items()},
    )
    code, out, _ = hound(capsys, "search", "digits", "--models", OWN, "--limit", "40", "--json")
    assert code == 0
    assert [(each["model"], each["phase"]) for each in json.loads(out)["failures"]] == [
        ("zoo:resnet-glyphs", "build model")
    ]


def test_a_model_that_gives_nan_fails_alone(capsys: pytest.CaptureFixture[str], own_zoo: Path) -> None:
    rewrite(
        own_zoo / "resnet-glyphs.safetensors",
        lambda w: {k: v * float("nan") if v.is_floating_point() else v for k, v in w.items()},
    )
    code, out, _ = hound(capsys, "search", "digits", "--models", OWN, "--limit", "40")
    assert code == 0
    assert "Failed: zoo:resnet-glyphs in phase 'score'" in out
    assert "NaN" in out


def test_a_model_that_sees_nothing_is_said_to(capsys: pytest.CaptureFixture[str], own_zoo: Path) -> None:
    def blind(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name: each * 0 if each.is_floating_point() else each for name, each in tensors.items()}

    rewrite(own_zoo / "resnet-glyphs.safetensors", blind)
    code, out, err = hound(capsys, "search", "digits", *SMALL, "--json")
    assert code == 0, err
    notes = {row["model"]: " ".join(row["notes"]) for row in json.loads(out)["ranking"]}
    assert "features tell nothing of the labels" in notes.pop("zoo:resnet-glyphs")
    assert not any(notes.values())


def test_a_run_in_which_every_model_fails_exits_with_1(capsys: pytest.CaptureFixture[str], own_zoo: Path) -> None:
    for file in own_zoo.iterdir():
        file.write_bytes(b"\0" * 100)
    code, out, _ = hound(capsys, "search", "digits", "--models", OWN, "--limit", "40", "--json")
    assert code == 1
    assert len(json.loads(out)["failures"]) == 3


def test_ctrl_c_exits_with_130_without_a_traceback_and_the_next_start_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["search", "digits", "--models", f"{OWN},zoo:v*,zoo:c*", "--run", str(tmp_path / "run"), "--limit", "200"]
    command = [sys.executable, "-m", "modelhound", *asked]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    records = tmp_path / "run" / "records.jsonl"
    deadline = time.monotonic() + 120
    while not (records.exists() and '"kind":"model"' in records.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "interrupted" in err
    assert "Traceback" not in err
    before = records.read_text().count('"kind":"model"')
    code, out, _ = hound(capsys, *asked, "--json")
    assert code == 0
    assert len(json.loads(out)["ranking"]) == 9
    assert 1 <= before < 9
    assert records.read_text().count('"kind":"model"') == 9


def test_a_second_search_in_the_same_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from modelhound.store import open_run

    held = open_run(tmp_path / "run", verb="search", at="", settings={}, identity={})
    with held:
        code, _, err = hound(capsys, "search", "digits", *SMALL, "--run", str(tmp_path / "run"))
    assert code == 2
    assert "another process is writing it" in err


def test_help_answers_without_torch() -> None:
    code = "import sys; from modelhound import cli; cli.run(['--help']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "search" in done.stdout


@pytest.mark.parametrize("ending", ["| head -1", "| true"])
def test_a_closed_pipe_is_no_error(ending: str) -> None:
    command = f"set -o pipefail; {sys.executable} -m modelhound models 'zoo:*' {ending}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_stream_that_was_closed_is_no_error(closed: str) -> None:
    command = f"{sys.executable} -m modelhound models 'zoo:*' {closed}"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == 0


def test_an_unexpected_error_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import modelhound.store

    def burst(root: Path) -> list[object]:
        raise ZeroDivisionError("of all things")

    monkeypatch.setattr(modelhound.store, "list_runs", burst)
    code, out, err = hound(capsys, "runs")
    assert (code, out) == (1, "")
    assert "unexpected ZeroDivisionError: of all things" in err
    assert "Traceback" not in err


def test_a_list_of_models_is_readable_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = hound(capsys, "models", "zoo:resnet*")
    assert re.search(r"zoo:resnet-shapes-garments_b +103\.4.k +garments_b \(trunk: resnet-shapes\)", out)
    assert "downloads" not in out  # of which there are none


def test_runs_and_models_list_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert "No runs" in hound(capsys, "runs")[1]
    hound(capsys, "search", "digits", *SMALL)
    _, out, _ = hound(capsys, "runs", "--json")
    (only,) = json.loads(out)["runs"]
    assert (only["data"], only["num_models"], only["finished"]) == ("digits", 2, True)
    assert only["answer"].startswith("zoo:")
    assert only["asked_at"][:4].isdigit()
    assert only["run"] in hound(capsys, "runs")[1]
    _, out, _ = hound(capsys, "models", "zoo:resnet*", "--json")
    cards = json.loads(out)["models"]
    both = json.loads(hound(capsys, "models", "zoo:resnet*,zoo:vit-rotation", "zoo:vit-glyphs", "--json")[1])["models"]
    assert len(both) == len(cards) + 2
    assert len(cards) >= 3
    assert all(card["family"] == "resnet" and card["num_parameters"] > 10_000 for card in cards)


def die_unless_guarded() -> dict[str, Any]:
    """Behaves like a product on a CPU that announces AMX and cannot run it."""
    if "ONEDNN_MAX_CPU_ISA" not in os.environ:
        os.kill(os.getpid(), signal.SIGILL)
    return {"is_right": True, "times_fp32": 2.0}


@pytest.fixture
def cpu_that_dies_on_bf16(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from modelhound.launch import arithmetic

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)]))
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    monkeypatch.setattr(arithmetic, "_PROBE", f"{Path(__file__).stem}:die_unless_guarded")
    arithmetic._try_bf16.cache_clear()
    yield
    arithmetic._try_bf16.cache_clear()


def test_the_precision_is_told_wherever_the_device_is(capsys: pytest.CaptureFixture[str]) -> None:
    from modelhound.launch.arithmetic import try_bf16
    from modelhound.report.pages import build_page
    from modelhound.report.search_answer import supporting_sentences
    from modelhound.report.search_view import view_search
    from modelhound.store import read_run

    found = try_bf16()
    if not (found.outcome.ok and found.is_right):
        pytest.skip(f"this CPU cannot have bf16: {found.outcome.ending}")
    asked = ["search", "digits", *SMALL, "--device", "cpu", "--run"]
    _, shown, _ = hound(capsys, *asked, "half", "--precision", "bf16")
    assert "of model time went (cpu, bf16): " in " ".join(shown.split())
    for run, precision in (("half", "bf16"), ("whole", "fp32")):
        document = json.loads(hound(capsys, *asked, run, "--precision", precision, "--json")[1])
        assert (document["device"], document["precision"]) == ("cpu", precision)
        told = str(supporting_sentences(view_search(read_run(Path(run)))))
        assert ("(cpu, bf16): " in told) is (precision == "bf16")
        assert build_page([read_run(Path(run))]).next_steps[0][1].endswith(f"--precision {precision} --device cpu")
    assert "(cpu): " in hound(capsys, *asked, "whole", "--precision", "fp32")[1]


@pytest.mark.usefixtures("cpu_that_dies_on_bf16")
@pytest.mark.parametrize("verb", ["search", "loader", "train", "profile", "breakeven"])
def test_bf16_is_refused_where_it_would_end_the_process(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    model = "--model" if verb == "train" else "--models"
    code, _, err = hound(
        capsys, verb, "digits", model, "zoo:mobilenet-glyphs", "--precision", "bf16", "--device", "cpu"
    )
    assert code == 2
    assert "cannot use --precision bf16 on this CPU: a product ends the process with SIGILL" in " ".join(err.split())
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in err


@pytest.mark.usefixtures("cpu_that_dies_on_bf16")
def test_doctor_finds_a_cpu_that_dies_on_bf16_and_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    from modelhound.verbs import doctor

    monkeypatch.setattr(doctor, "_LOOKS", {"bf16 on the CPU": doctor._look_at_bf16})
    (check,) = doctor.doctor().checks
    assert check.name == "bf16 on the CPU"
    assert check.verdict == "broken"
    assert "SIGILL" in check.finding
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16" in check.advice


def test_doctor_answers_with_a_verdict_for_everything(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = hound(capsys, "doctor", "--json")
    document = json.loads(out)
    assert code == 0
    assert {each["verdict"] for each in document["checks"]} <= {"good", "slow", "broken", "note"}
    assert document["machine"]["num_cores"] == len(os.sched_getaffinity(0))
    assert all(each["advice"] for each in document["checks"] if each["verdict"] in {"slow", "broken"})


def test_a_plan_goes_on_without_a_model_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from modelhound.measuring import taking_over

    source_of = taking_over.source_of

    class Unreadable:
        def stamp(self, name: str, settings: ModelSettings) -> str:
            raise ModelError(f"cannot read {name!r}: expected a file")

    monkeypatch.setattr(
        taking_over, "source_of", lambda model: Unreadable() if "glyphs" in model.name else source_of(model)
    )
    code, out, err = hound(capsys, "search", "digits", *SMALL, "--explain", "--json")
    assert code == 0, err
    document = json.loads(out)
    (failure,) = document["failures"]
    assert (failure["model"], failure["phase"]) == ("zoo:resnet-glyphs", "read weights")
    assert set(failure) == {"model", "phase", "error"}
    assert "kind" not in document["plan"]


def test_an_explanation_decodes_once_for_networks_of_two_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    """Both say so: the tree that a person sees, and seconds that add up to the phase."""
    models = ("--models", "zoo:resnet-shapes,zoo:resnet-textures")
    code, out, err = hound(capsys, "search", "fashion", "--limit", "40", *models, "--explain", "--fresh", "--json")
    assert code == 0, err
    document = json.loads(out)
    first, second = document["plan"]["trees"]
    assert first["seconds"] > 0
    assert first["seconds"] + second["seconds"] == pytest.approx(document["phases"]["wait for data"], abs=1e-6)
    code, out, _ = hound(capsys, "search", "fashion", "--limit", "40", *models, "--explain", "--fresh")
    assert (out.count("decoded once"), out.count("made of the same items")) == (1, 1)


def test_a_plan_refuses_what_the_search_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hound(capsys, "search", "digits", *SMALL, "--scorers", "hscore", "--explain")
    assert code == 2
    assert "cannot rank by hscore alone" in err


def test_an_explanation_says_when_no_model_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("def make():\n    raise RuntimeError('it is gone')\n")
    code, out, _ = hound(capsys, "search", "digits", "--limit", "40", "--models", "py:broken.py:make", "--explain")
    assert code == 1
    assert "it is gone" in out
    assert out.splitlines()[-1] == "No model can be used."


def test_an_explanation_counts_one_as_one_and_is_silent_on_phases_that_take_no_time(
    capsys: pytest.CaptureFixture[str],
) -> None:
    plan = PlanMade(num_items=1, num_models=1, seconds=0, seconds_alone=0, trees=())
    foreseen = SearchForeseen(
        num_models=1,
        num_remembered=1,
        num_items=1,
        rungs=(1,),
        phases={"forward": 0.01},
        seconds=0.01,
        least_seconds=0.01,
        peak_memory_bytes=1,
        flops=1.0,
        flops_run=1.0,
        weight_bytes=1,
        weight_bytes_read=1,
        plan=plan,
        failures=(),
    )
    _show_foreseen(foreseen)
    out = capsys.readouterr().out
    assert "Busy" not in out
    assert "1 model over 1 item:" in out
    assert "1 more is remembered and only has to be scored." in out


@pytest.mark.parametrize("option", ["--live", "--open"])
def test_options_that_need_a_search_that_runs_are_refused_beside_explain(
    capsys: pytest.CaptureFixture[str], option: str
) -> None:
    code, _, err = hound(capsys, "search", "digits", *SMALL, "--explain", option)
    assert code == 2
    assert f"cannot use {option} with --explain" in err
