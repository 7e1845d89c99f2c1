"""Options by topic: every field has one, and what is asked is the same settings."""

from dataclasses import KW_ONLY, dataclass

import pytest

from modelhound import cli
from modelhound.cli.grouping import in_groups
from modelhound.settings import TrainSettings


@dataclass(frozen=True)
class Asked:
    """Something."""

    what: str
    _: KW_ONLY
    often: int = 1


def test_the_settings_stay_what_they_are() -> None:
    grouped = in_groups(Asked, {"One": ("what",), "Two": ("often",)})
    made = grouped("this", often=3)
    assert isinstance(made, Asked)
    assert (made.what, made.often) == ("this", 3)


@pytest.mark.parametrize(
    "topics", [{"One": ("what",)}, {"One": ("what", "often"), "Two": ("often",)}, {"One": ("who",)}]
)
def test_a_field_without_a_topic_or_with_two_is_refused(topics: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(TypeError, match="the topics of Asked"):
        in_groups(Asked, topics)


def test_help_of_training_is_by_topic(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "--help"]) == 0
    shown = capsys.readouterr().out
    places = [shown.index(f"─ {topic} ─") for topic in ("Data", "Models", "Recipe", "Running", "SLURM", "Output")]
    assert places == sorted(places)
    options = {name for name in TrainSettings.__dataclass_fields__ if name not in ("_", "data")}
    assert all(f"--{name.replace('_', '-')} " in shown for name in options)
