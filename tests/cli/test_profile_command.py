"""`hound profile` as a person meets it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import save_file

import modelhound
from command_line import hound
from modelhound.models import ModelRef, source_of
from modelhound.records import ConfigurationProfiled
from modelhound.report.analysis_text import BREAKEVEN_TITLE, check_folder
from modelhound.report.charts import spec
from modelhound.report.profile_charts import profile_charts
from modelhound.store import cache_folder, read_run

SMALL = ("--models", "zoo:resnet-shapes", "--batches", "3", "--warmup", "1", "--batch", "4", "--repeats", "2")


def test_a_profile_shows_every_configuration_and_says_what_it_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = hound(
        capsys, "profile", "digits", *SMALL, "--parts", "full,50%,1", "--joint", "50%", "--classes", "20,2",
        "--run", "mine", "--charts", "png,svg", "--analysis", "analysis", "--items", "100,1000",
    )  # fmt: skip
    assert code == 0, err
    for configuration in ("full", "last 50%", "last 1", "joint 50%", "apart 2"):
        assert re.search(rf"\b{configuration}\s+\d+/\d+", out), configuration
    assert "for free" in out
    assert "by FLOPs" in out
    assert "The phases account for all but" in out
    names = {path.name for path in Path("mine/report-charts").iterdir()}
    for kind in ("seconds", "shares", "crossover", "items", "savings"):
        assert {f"profile_{kind}_digits_cpu.png", f"profile_{kind}_digits_cpu.svg"} <= names
    page = Path("analysis/README.md").read_text()
    pictures = re.findall(r"\]\(([^)]+\.png)\)", page)
    assert len(pictures) == len(set(pictures)) == 5
    assert all((Path("analysis") / picture).is_file() for picture in pictures)
    assert "## How it was measured" in page
    assert str(Path.cwd()) not in page
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = hound(
        capsys,
        "profile",
        "digits",
        *SMALL,
        "--parts",
        "full,50%,1",
        "--joint",
        "50%",
        "--classes",
        "20,2",
        "--run",
        "mine",
    )
    for configuration in ("full", "last 50%", "last 1", "joint 50%", "apart 2"):
        assert re.search(rf"\b{configuration}( +[\d.,]+){{3,}} *$", out, flags=re.MULTILINE), (
            configuration
        )  # in one line


def test_the_json_holds_samples_findings_and_nothing_is_measured_twice(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("profile", "digits", *SMALL, "--joint", "none", "--run", "run", "--json")
    code, out, _ = hound(capsys, *asked, "--parts", "full")
    document = json.loads(out)
    assert code == 0
    (row,) = document["profiles"]
    assert row["num_items"] == 12
    assert len(row["samples"]["forward"]) == 3
    assert row["phases"]["forward"] == pytest.approx(sum(row["samples"]["forward"]))
    assert sum(row["phases"].values()) == pytest.approx(row["wall_seconds"])
    assert document["findings"]["bottlenecks"][0]["bottleneck"] in ("weights", "data", "forward", "score")
    _, out, _ = hound(capsys, *asked, "--parts", "full,1")
    again = {each["configuration"]: each for each in json.loads(out)["profiles"]}
    assert again["full"] == row
    assert set(again) == {"full", "last 1"}
    records = read_run(Path("run")).of(ConfigurationProfiled)
    assert [each.configuration for each in records] == ["full", "last 1"]


def test_prepared_items_and_texts_can_be_profiled_beside_raw_ones(
    capsys: pytest.CaptureFixture[str], image_folder: Callable[..., Path], tmp_path: Path
) -> None:
    from tiny_encoders import write_encoder

    photos, encoder = str(image_folder()), write_encoder(tmp_path / "bert")
    hound(capsys, "prepare", photos, "ready", "--models", "zoo:resnet-shapes")
    code, out, err = hound(
        capsys, "profile", photos, "--also", "ready,sms", *SMALL[2:], "--models", f"zoo:resnet-shapes,file:{encoder}",
        "--weights", "pretrained", "--parts", "full,1", "--joint", "none", "--json",
    )  # fmt: skip
    assert code == 0, err
    rows = [(each["model"].partition(":")[0], Path(each["data"]).name) for each in json.loads(out)["profiles"]]
    assert sorted(set(rows)) == [("file", "sms"), ("zoo", "photos"), ("zoo", "ready")]
    assert len(rows) == 6


def test_fewer_batches_than_asked_for_are_said_and_not_repeated(
    capsys: pytest.CaptureFixture[str], image_folder: Callable[..., Path]
) -> None:
    code, out, _ = hound(
        capsys, "profile", str(image_folder()), "--models", "zoo:resnet-shapes", "--batch", "8", "--parts", "full",
        "--joint", "none",
    )  # fmt: skip
    assert code == 0
    assert "has 24 items here, so that 3 batches of 8 were run instead of 50; none was repeated" in " ".join(
        out.split()
    )


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--parts", "full,99"), r"cannot run the last 99 layers of zoo:resnet-shapes: expected at most \d+"),
        (("--parts", "most"), "cannot run 'most'"),
        (("--heads", "zoo:resnet-glyphs"), "cannot join zoo:resnet-glyphs to zoo:resnet-shapes"),
        (("--heads", "zoo:nothing"), "cannot find model 'zoo:nothing'"),
        (("--also", "sms", "--parts", "full", "--device", "tpu"), "cannot use --device 'tpu'"),
        (("--classes", "1"), "cannot use --classes .1.: expected whole numbers from 2"),
    ],
)
def test_what_cannot_be_served_is_refused_without_a_traceback(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    code, out, err = hound(capsys, "profile", "digits", *SMALL, *argv)
    assert code == 2
    assert out == ""
    assert re.search(message, " ".join(err.split()))
    assert "Traceback" not in err


def test_an_analysis_does_not_take_the_place_of_somebodys_readme(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "README.md").write_text("# My project\n")
    for verb in ("profile", "breakeven"):
        code, out, err = hound(capsys, verb, "digits", "--limit", "40", "--analysis", str(tmp_path))
        assert (code, out) == (2, "")
        assert "expected a folder without a README.md of somebody else's" in " ".join(err.split())
    assert (tmp_path / "README.md").read_text() == "# My project\n"
    check_folder(tmp_path / "new")
    (tmp_path / "README.md").write_text(f"{BREAKEVEN_TITLE}\n\nOlder.\n")
    check_folder(tmp_path)


def test_a_model_for_other_items_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = hound(capsys, "profile", "sms", *SMALL)
    assert code == 2
    assert "cannot profile zoo:resnet-shapes on 'sms': expected images" in " ".join(err.split())


def test_a_model_that_cannot_be_built_fails_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken").mkdir()
    Path("broken/config.json").write_text("{}")
    code, out, _ = hound(
        capsys, "profile", "digits", *SMALL[2:], "--models", "file:broken,zoo:resnet-shapes", "--parts", "full",
        "--joint", "none",
    )  # fmt: skip
    assert code == 0
    assert "Failed: file:broken" in out
    assert "zoo:resnet-shapes" in out


def test_python_gives_the_same_as_the_command_and_charts_are_made_of_its_numbers() -> None:
    result = modelhound.profile(
        "digits", "zoo:vit-rotation", batches=3, warmup=1, batch="4", parts="full,1", joint="none", repeats=2
    )
    charts = {chart.name.split("_")[1]: chart for chart in profile_charts(result.profiles, result.findings)}
    assert set(charts) == {"seconds", "shares", "crossover", "savings"}
    for record in result.profiles:
        rows = [row for row in charts["shares"].data if row["configuration"] == record.configuration]
        assert sum(float(row["share"] or 0) for row in rows) == pytest.approx(1)
        assert sum(float(row["seconds"] or 0) for row in rows) == pytest.approx(record.wall_seconds)
    assert all(spec(chart)["config"] for chart in charts.values())
    with pytest.raises(modelhound.RequestError, match="unexpected keyword argument 'speed'"):
        modelhound.profile("digits", "zoo:vit-rotation", speed=3)
    assert not any(left.is_dir() for left in (cache_folder() / "profile").iterdir())


def test_joint_models_are_profiled_again_where_the_weights_of_a_head_changed(tmp_path: Path) -> None:
    source = source_of(ModelRef("zoo", "resnet-shapes"))
    tensors = source.build("resnet-shapes", source.read_weights("resnet-shapes")).module.state_dict()
    files = [tmp_path / "own.safetensors", tmp_path / "head.safetensors"]
    last = [name for name, each in tensors.items() if each.ndim == 4][-1]

    def profile(factor: float) -> modelhound.ProfileResult:
        save_file({**tensors, last: factor * tensors[last]}, files[1])
        return modelhound.profile(
            "digits",
            f"file:{files[0]}",
            **{"arch": "zoo:resnet-shapes", "weights": "pretrained", "heads": f"file:{files[1]}", "parts": "full"},
            **{"joint": "2", "batches": 2, "warmup": 1, "batch": "2", "classes": "2", "scorers": "ridge", "repeats": 1},
            run="own",
        )

    save_file(tensors, files[0])
    assert [profile(factor).num_resumed for factor in (1.1, 1.2)] == [0, 0]  # without the change 3, as other tests show
