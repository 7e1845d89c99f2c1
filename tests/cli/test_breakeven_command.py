"""`hound breakeven` as a person meets it."""

import json
import re
from pathlib import Path

import pytest

import modelhound
from command_line import hound
from finals_networks import write_coloured, write_networks
from modelhound.records import FeaturesTimed, SearchTimed, TrainingTimed
from modelhound.store import read_run

SMALL = (
    "breakeven", "digits", "--models", "zoo:resnet-shapes", "--sizes", "40,80", "--epochs", "2", "--run", "run",
    "--pool", "zoo:resnet-*glyphs", "--counts", "1,9",
)  # fmt: skip


def test_training_and_searching_are_compared_and_a_second_start_measures_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = hound(capsys, *SMALL, "--assume", "items=4000,models=100", "--price-per-hour", "2")
    assert code == 0, err
    assert re.search(r"zoo:resnet-shapes\s+40\s", out)
    assert re.search(r"\d m?s \(\d+\.\dx\)", out)
    assert re.search(r"S1, zoo:resnet-shapes on 80 items, one model after the other: above [\d,]+ \[", out)
    assert re.search(r"80\s+S2\s.* in money\s+[\d,]+ \[[\d,]+, [\d,]+\]\s+[\d,]+ \[", out)
    assert "4,000 items instead of 80: an epoch takes" in out
    assert "in money" in out
    assert "What this rests on" in out
    run = read_run(Path("run"))
    assert [(each.mode, each.num_items) for each in run.of(TrainingTimed)] == [
        (mode, size) for size in (40, 80) for mode in ("full", "head", "cached")
    ]
    assert all(len(each.epoch_seconds) == 2 for each in run.of(TrainingTimed))
    assert [each.num_items for each in run.of(FeaturesTimed)] == [40, 80]
    assert [(each.num_models, each.way) for each in run.of(SearchTimed)] == [
        (count, way) for count in (1, 2) for way in ("plain", "engine")
    ]
    assert "models in the pool: 2, taken in place of 9" in out
    code, out, err = hound(
        capsys, *SMALL, "--json", "--scenario", "epochs=7-9", "--charts", "svg", "--analysis", "text"
    )
    document = json.loads(out)
    assert code == 0, err
    assert {each["scenario"] for each in document["findings"]["counts"]} == {"S1", "S2", "yours"}
    yours = [each for each in document["findings"]["counts"] if each["scenario"] == "yours"]
    assert all(each["over_epochs"][0] <= each["num_models"] <= each["over_epochs"][1] for each in yours)
    assert len(read_run(Path("run")).of(TrainingTimed)) == 6
    row = document["findings"]["rows"][1]
    assert row["ratios"]["full"] == pytest.approx(row["seconds"]["full"] / row["seconds"]["extract"])
    assert Path("run/report-charts/breakeven_times.svg").is_file()
    page = Path("text/README.md").read_text()
    pictures = re.findall(r"\]\(([^)]+\.png)\)", page)
    assert pictures
    assert all((Path("text") / each).is_file() for each in pictures)


def test_a_size_beyond_the_data_set_means_all_of_it_and_that_is_said() -> None:
    result = modelhound.breakeven(
        "digits", "zoo:vit-rotation", limit=60, sizes="40,4000", epochs=3, measured_epochs=1, modes="full", pool="none"
    )
    assert [each.num_items for each in result.trainings] == [40, 60]
    assert [each.num_epochs for each in result.trainings] == [1, 1]
    assert "digits has 60 items, which were taken in place of 4,000" in result.notes[0]
    assert result.findings.ways == ()
    assert any("Only 1 of 3 epochs were run" in line for line in result.findings.assumptions)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--sizes", "20"), "cannot use --sizes 20 with 'digits': expected at least 40"),
        (("--models", "zoo:nothing"), "cannot find model 'zoo:nothing'"),
        (("--scenario", "years=3"), "cannot use --scenario 'years=3'"),
        (("--layers", "best"), "cannot use --layers best: expected one vector per text"),
        (("--measured-epochs", "0"), "--measured-epochs 0: expected a whole number of at least 1"),
    ],
)
def test_what_cannot_be_served_is_refused_without_a_traceback(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], message: str
) -> None:
    code, out, err = hound(capsys, *SMALL, *argv)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())


def test_a_search_over_files_that_were_edited_since_is_timed_again(tmp_path: Path) -> None:
    networks = write_networks(tmp_path)
    data = str(write_coloured(tmp_path / "coloured", per_class=8))

    def compare() -> modelhound.BreakevenResult:
        return modelhound.breakeven(
            data, "zoo:vit-rotation", sizes="24", epochs=1, modes="full", pool=networks["sharp"], counts="1", run="own"
        )

    assert compare().num_resumed == 0
    assert compare().num_resumed == 4  # features, a training, two ways of searching
    file = next(tmp_path.glob("networks_*.py"))
    file.write_text(file.read_text().replace("20 * torch.tanh", "10 * torch.tanh"))
    assert compare().num_resumed == 2
