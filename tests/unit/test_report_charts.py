"""Charts: rows apart from drawing, one theme, colours that everybody can tell apart, pictures on disk."""

import itertools
import math
from pathlib import Path
from typing import Any

import numpy
import pytest
from PIL import Image

from modelhound.errors import RequestError
from modelhound.report.charts import COLOURS, PHASE_COLOURS, Chart, phase_scale, save_charts, spec
from modelhound.report.theme import DARK, DARK_COLOURS, LIGHT, Surface

# Machado, Oliveira and Fernandes 2009: linear RGB as it looks to people without one kind of cone.
SEEN_BY = {
    "everybody": numpy.eye(3),
    "protanopes": numpy.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopes": numpy.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopes": numpy.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
JUST_TOLD_APART = 0.02  # in OKLab


def draw_points(data: Any) -> Any:
    import altair

    return altair.Chart(data).mark_point().encode(x="seconds:Q", y="accuracy:Q", color="model:N")


CHART = Chart(
    name="small",
    title="Accuracy against time",
    caption="Up and to the left is better.",
    data=({"model": "a", "seconds": 1.0, "accuracy": 0.5}, {"model": "b", "seconds": math.inf, "accuracy": 0.75}),
    draw=draw_points,
)


def test_a_chart_is_saved_as_png_and_svg(tmp_path: Path) -> None:
    paths = save_charts([CHART], tmp_path / "new" / "charts")
    assert [path.name for path in paths] == ["small.png", "small.svg"]
    with Image.open(paths[0]) as picture:
        assert picture.width >= 1280
        assert len(picture.convert("RGB").getcolors(maxcolors=1 << 20)) > 10
    text = paths[1].read_text()
    assert "Accuracy against time" in text
    assert "Up and to the left" in text
    assert COLOURS[0] in text
    assert not list((tmp_path / "new" / "charts").glob(".*"))


def test_an_unknown_picture_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="expected png or svg"):
        save_charts([CHART], tmp_path, ["gif"])


def test_a_specification_holds_the_rows_the_theme_and_no_infinity() -> None:
    drawn = spec(CHART)
    (rows,) = drawn["datasets"].values() if "datasets" in drawn else (drawn["data"]["values"],)
    assert rows[1] == {"model": "b", "seconds": None, "accuracy": 0.75}
    assert drawn["config"]["range"]["category"] == list(COLOURS)
    assert drawn["width"] == "container"
    assert spec(CHART, width=300)["width"] == 300
    assert "Accuracy against time" in drawn["description"]


def test_dark_charts_have_dark_colours_and_their_rows_are_left_alone() -> None:
    def draw(data: Any) -> Any:
        import altair

        return (
            altair.Chart(data)
            .mark_bar()
            .encode(x="seconds:Q", color=altair.Color("phase:N", scale=phase_scale(["forward"])))
        )

    chart = Chart(
        name="x", title="x", caption="", data=({"phase": "forward", "seconds": 1, "name": COLOURS[0]},), draw=draw
    )
    assert spec(chart)["encoding"]["color"]["scale"]["range"] == [PHASE_COLOURS["forward"]]
    dark = spec(chart, dark=True)
    assert dark["encoding"]["color"]["scale"]["range"] == [DARK_COLOURS[COLOURS.index(PHASE_COLOURS["forward"])]]
    assert dark["config"]["background"] == DARK.background
    assert dark["datasets"]["rows"][0]["name"] == COLOURS[0]


def test_phases_without_a_colour_get_those_that_are_left() -> None:
    scale = phase_scale(["forward", "new", "newer"]).to_dict()
    assert scale["range"][0] == PHASE_COLOURS["forward"]
    assert len(set(scale["range"])) == 3


@pytest.mark.parametrize(
    "together",
    [
        [
            "read weights",
            "build model",
            "weights to device",
            "wait for data",
            "data to device",
            "forward",
            "score",
            "other",
        ],
        ["first batch", "wait for data", "forward", "backward", "communication", "optimiser", "logging", "other"],
        ["wait for data", "data to device", "forward", "backward", "communication", "optimiser", "logging", "other"],
    ],
)
def test_phases_beside_each_other_have_different_colours(together: list[str]) -> None:
    assert len({PHASE_COLOURS[phase] for phase in together}) == len(together)


@pytest.mark.parametrize("colours", [COLOURS, DARK_COLOURS], ids=["light", "dark"])
@pytest.mark.parametrize("people", SEEN_BY)
def test_every_two_colours_are_told_apart_by(people: str, colours: tuple[str, ...]) -> None:
    seen = {colour: perceived(colour, SEEN_BY[people]) for colour in colours}
    for one, other in itertools.combinations(colours, 2):
        assert numpy.linalg.norm(seen[one] - seen[other]) > 4 * JUST_TOLD_APART, (one, other)


@pytest.mark.parametrize(("surface", "colours"), [(LIGHT, COLOURS), (DARK, DARK_COLOURS)], ids=["light", "dark"])
def test_contrast_satisfies_wcag_aa(surface: Surface, colours: tuple[str, ...]) -> None:
    for background in (surface.background, surface.raised):
        for text in (surface.text, surface.muted, surface.accent, surface.good):
            assert contrast(text, background) >= 4.5, (text, background)
    assert contrast(surface.on_accent, surface.accent) >= 4.5
    for colour in colours:  # what is drawn, and is no text
        assert contrast(colour, surface.background) >= 3, colour


def perceived(colour: str, seen_by: numpy.ndarray) -> numpy.ndarray:
    """OKLab of a colour as it looks to some people."""
    cones = numpy.clip(seen_by @ linear(colour), 0, 1) @ numpy.array(
        [
            [0.4122214708, 0.2119034982, 0.0883024619],
            [0.5363325363, 0.6806995451, 0.2817188376],
            [0.0514459929, 0.1073969566, 0.6299787005],
        ]
    )
    return numpy.cbrt(cones) @ numpy.array(
        [
            [0.2104542553, 1.9779984951, 0.0259040371],
            [0.7936177850, -2.4285922050, 0.7827717662],
            [-0.0040720468, 0.4505937099, -0.8086757660],
        ]
    )


def linear(colour: str) -> numpy.ndarray:
    parts = numpy.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return numpy.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    light, dark = sorted((float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)
