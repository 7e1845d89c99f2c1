"""All verbs speak alike: what would do nothing is refused, one thing has one name, printed commands can be typed."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import modelhound
from modelhound import cli, records
from modelhound.errors import RequestError
from modelhound.records import (
    Failure,
    ItemSkipped,
    LoaderAnswer,
    LoaderUsed,
    ModelDropped,
    PairFailed,
    SavedModel,
    to_document,
    to_plain,
)
from modelhound.report.commands import command_on_same_data, command_to_train
from modelhound.settings import LatencySettings, LoaderSearchSettings, SearchSettings
from modelhound.store import read_run

TAKES_MODELS = ("search", "train", "profile", "breakeven", "loader")
FEW = ("--limit", "40", "--models", "zoo:resnet-glyphs")


def is_record(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def complaint(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert cli.run(argv) == 2
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("verb", TAKES_MODELS)
def test_an_arch_that_no_model_would_use_is_refused(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "cannot use --arch 'timm:resnet18' with zoo:resnet-glyphs: expected a model of the form file:PATH"
        in complaint(capsys, verb, "digits", *FEW, "--arch", "timm:resnet18")
    )


@pytest.mark.parametrize("verb", TAKES_MODELS)
def test_what_is_asked_of_texts_is_refused_for_images(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot use --tokens 16 with 'digits': expected texts, but these are images" in complaint(
        capsys, verb, "digits", *FEW, "--tokens", "16"
    )


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("loader digits --grid --budget 50%", "cannot use --budget with --grid"),
        ("loader digits --workers 0 --prefetch 4", "cannot use --prefetch with --workers 0"),
        ("loader digits --workers 0 --persistent", "cannot use --persistent with --workers 0"),
        ("breakeven digits --pool none --counts 2", "cannot use --counts with --pool none"),
        ("profile digits --joint none --heads 3", "cannot use --heads with --joint none"),
        ("latency --compare a b --models tv:resnet18", "cannot use --models while runs are compared"),
        ("latency --compare a b --run c", "cannot use --run while runs are compared"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    argv: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in complaint(capsys, *argv.split())


@pytest.mark.parametrize("option", ["search digits --risk", "loader digits --budget", "latency --width"])
def test_a_share_may_be_written_as_a_number_or_in_per_cent(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    for share in ("0.03", "3%", ".03", "3 %"):
        assert "cannot use --device 'nowhere'" in complaint(capsys, *option.split(), share, "--device", "nowhere")
    for wrong in ("300%", "3", "few", "nan"):
        assert f"{option.split()[-1]} '{wrong}': expected a share from" in complaint(capsys, *option.split(), wrong)


def test_a_share_in_per_cent_is_read_where_another_package_has_brought_pydantic() -> None:
    """cyclopts then has pydantic check every value against what it was told to expect."""
    each = [["search", "digits", *risk, "--device", "nowhere"] for risk in (["--risk", "3%"], [])]
    command = f"import pydantic; from modelhound.cli import run; [run(argv) for argv in {each}]"
    told = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, timeout=60, check=True
    ).stderr
    assert told.count("cannot use --device 'nowhere'") == len(each)


def test_a_share_means_the_same_whoever_asks() -> None:
    assert SearchSettings("digits", risk="2%").risk == SearchSettings("digits", risk=0.02).risk == 0.02  # type: ignore[arg-type]
    assert LoaderSearchSettings("digits", budget="40%").budget == 0.4  # type: ignore[arg-type]
    assert LatencySettings(width="5 %").width == 0.05  # type: ignore[arg-type]
    budgets = [SearchSettings("digits", finals="auto", finals_budget=text) for text in ("15%", "0.15", ".15")]
    assert {each.parsed_finals_budget() for each in budgets} == {(0.15, None)}
    with pytest.raises(RequestError, match=r"such as 15% or 0\.15"):
        SearchSettings("digits", finals="auto", finals_budget="15")


@pytest.mark.parametrize("verb", TAKES_MODELS)
def test_data_without_a_name_are_refused_in_the_words_of_data_that_are_not_there(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "cannot open data '': expected digits, fashion, sms or the path of" in complaint(capsys, verb, "")


@pytest.mark.parametrize("verb", ["search", "breakeven", "loader"])
def test_models_of_which_none_takes_the_items_are_refused_alike(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        "cannot use zoo:resnet-glyphs with 'sms': expected models of texts, such as hf:sentence-transformers/all-MiniLM-L6-v2"
        in complaint(capsys, verb, "sms", *FEW)
    )


@pytest.mark.parametrize("verb", TAKES_MODELS)
def test_a_model_that_is_misspelt_is_said_before_the_data_are_looked_at(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "zoo:resnet-glyph" in complaint(capsys, verb, "nowhere", "--models", "zoo:resnet-glyph")


@pytest.mark.parametrize("verb", TAKES_MODELS)
def test_models_are_filtered_alike(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--where 'params < 3' holds for none of 23, widen it" in complaint(
        capsys, verb, "digits", "--models", "zoo:*", "--where", "params < 3"
    )


@pytest.mark.parametrize(
    "asked",
    [
        "profile {} --parts full --joint none --batches 2 --batch 4 --warmup 0 --repeats 1 --classes 2",
        "breakeven {} --sizes 20 --epochs 1 --modes full --pool none --repeats 1",
    ],
)
def test_an_item_that_takes_no_part_is_named(
    asked: str, capsys: pytest.CaptureFixture[str], image_folder: Callable[..., Path]
) -> None:
    photos = image_folder(num_classes=2, per_class=16)
    (photos / "class0" / "broken.jpg").write_bytes(b"no image")
    assert cli.run([*asked.format(photos).split(), "--models", "zoo:resnet-glyphs", "--run", "mine"]) == 0
    assert "1 item was left out: class0/broken.jpg (" in capsys.readouterr().out
    assert [each.item for each in read_run(Path("mine")).of(ItemSkipped)] == ["class0/broken.jpg"]


def test_json_holds_nothing_that_only_the_record_file_needs() -> None:
    dropped = ModelDropped(
        model="a", stamp="1", num_parameters=1, num_items=4, score=0.5, chance=0.0, top=5, seconds=1.0
    )
    used = LoaderUsed(batch=8, workers=None, prefetch=None, origin="remembered", found_for="digits")
    failure = Failure(model="a", phase="forward", error="broken")
    assert to_document(failure) == {"model": "a", "phase": "forward", "error": "broken"}
    (told,) = to_document((dropped,))
    assert "kind" not in told
    assert "stamp" not in told
    assert (told["model"], told["score"]) == ("a", 0.5)
    assert "kind" not in to_document(used)


def test_a_pair_that_failed_is_named_as_every_other_failure(tmp_path: Path) -> None:
    from modelhound.verbs.loader import LoaderResult

    failed = PairFailed(item_kind="raw", for_model="zoo:x", batch=8, workers=1, phase="forward", error="broken")
    result = LoaderResult(
        run=tmp_path,
        answer=LoaderAnswer(data="digits", device="cpu", machine_kind="m", kinds=(), notes=()),
        runs=(),
        failures=(failed,),
        failed_models=(Failure(model="zoo:y", phase="build model", error="gone"),),
        num_resumed=0,
        out=None,
    )
    first, second = result.to_json()["failures"]
    assert (first["model"], first["kind"], first["phase"], first["error"]) == ("zoo:x", "raw", "forward", "broken")
    assert second == {"model": "zoo:y", "phase": "build model", "error": "gone"}


def test_a_printed_command_can_be_typed_whatever_the_names() -> None:
    asked = to_plain(
        SearchSettings(
            "my photos/März",
            columns=("image=file name", "label=kind"),
            split="train",
            follow_links=True,
            allow_code=("me/mine",),
            arch="timm:resnet18",
        )
    )
    words = shlex.split(
        command_to_train(asked, SavedModel(model="file:my runs/x.safetensors", arch="zoo:resnet-shapes"))
    )
    assert words[:3] == ["hound", "train", "my photos/März"]
    options = {words[place]: words[place + 1] for place in range(3, len(words) - 1) if words[place].startswith("--")}
    assert options["--model"] == "file:my runs/x.safetensors"
    assert options["--arch"] == "zoo:resnet-shapes"
    assert options["--split"] == "train"
    assert options["--columns"] == "image=file name,label=kind", "as people write lists, and as README does"
    assert "--follow-links" in words
    assert "--arch" not in command_to_train(asked, "zoo:resnet-glyphs")
    assert shlex.split(command_to_train(asked, "file:w.safetensors"))[5:7] == ["--arch", "timm:resnet18"]
    assert modelhound.TrainSettings("my photos/März", columns=("image=file name", "label=kind")).roles() == {
        "image": "file name",
        "label": "kind",
    }
    told = command_on_same_data("search", asked, loader="found here.json")
    assert told.startswith("hound search 'my photos/März' --loader 'found here.json' --columns")


def test_one_thing_has_one_name_in_every_record() -> None:
    kinds = [each for name in records.__all__ if is_record(each := getattr(records, name))]
    names = {field.name for kind in kinds for field in msgspec.structs.fields(kind)}
    assert len(kinds) > 30
    assert "peak_memory_bytes" in names
    told_twice = {"peak_bytes", "max_memory_bytes", "num_warm_ups", "num_params", "parameters_count", "duration"}
    assert names & told_twice == set()
    assert [name for name in names if re.fullmatch(r"num_\w+_bytes(_\w+)?", name)] == [], "a unit is no count"
