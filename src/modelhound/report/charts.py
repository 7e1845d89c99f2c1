"""One chart: rows of plain values, and how they are drawn.

In:  Charts, made by the `..._charts` module of each verb
Out: Vega-Lite specifications with the theme of this package, and PNG and SVG files
A chart says what is drawn where; colours, fonts and sizes are the theme's. Nothing here knows records. altair is imported
when something is drawn.
"""

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from modelhound.errors import RequestError
from modelhound.records import Progress, Watch, silent
from modelhound.report.theme import COLOURS, PHASE_COLOURS, chart_config, darken
from modelhound.report.writing import write_file

if TYPE_CHECKING:
    import altair

__all__ = [
    "COLOURS",
    "PHASE_COLOURS",
    "SECONDS",
    "Chart",
    "Row",
    "log_ticks",
    "metric_axis",
    "phase_bars",
    "phase_scale",
    "save_charts",
    "share_axis",
    "spec",
]

_FORMATS = ("png", "svg")

SECONDS = ".3~r"
"""How tooltips and axes write seconds: an SI prefix would make minutes of milliseconds."""

Row: TypeAlias = dict[str, str | float | int | bool | None]

_ROWS = "rows"
_PICTURE_WIDTH = 640
_STEP_PIXELS = 20  # for each name on an axis, as Vega-Lite has it
_PIXELS_PER_POINT = 2.0
_WIDE = 300  # from the smallest to the largest value of a logarithmic axis
_FIXED_WIDTH = {"facet", "hconcat", "vconcat", "concat", "repeat"}  # these cannot fill their container


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What a chart shows, its rows, and how to draw them."""

    name: str
    """The name of its files without the ending, such as latency_batch_text."""
    title: str
    """What it shows, a sentence if possible."""
    caption: str
    """What to read from it."""
    data: tuple[Row, ...]
    draw: "Callable[[Any], altair.TopLevelMixin]"
    """Rows -> an altair chart that has no theme, size or colours of its own. The rows come as `altair.NamedData`, so
    every field needs its type: "seconds:Q"."""


def spec(chart: Chart, *, dark: bool = False, width: int | None = None) -> dict[str, Any]:
    """The Vega-Lite specification with the theme; as wide as what holds it, unless a width in pixels is given."""
    drawn = _draw(chart)
    if not _FIXED_WIDTH & drawn.keys():
        if width is not None:
            drawn.setdefault("width", width)
        elif "width" not in drawn:
            drawn |= {"width": "container", "autosize": {"type": "fit-x", "contains": "padding"}}
            _count_height(drawn, chart.data)
    drawn["description"] = f"{chart.title} {chart.caption}".strip()
    drawn["config"] = chart_config(dark=dark)
    return darken(drawn) if dark else drawn


def save_charts(
    charts: Sequence[Chart],
    folder: Path,
    formats: Sequence[str] = _FORMATS,
    *,
    watch: Watch = silent,
) -> tuple[Path, ...]:
    """Draw every chart into `folder`, one file per format; the paths in order."""
    import vl_convert

    unknown = [each for each in formats if each not in _FORMATS]
    if unknown or not formats:
        raise RequestError(
            f"cannot draw charts as {', '.join(unknown) or 'nothing'!r}: expected {' or '.join(_FORMATS)}"
        )
    paths = []
    for place, chart in enumerate(charts):
        watch(Progress(task="draw", done=place, total=len(charts), detail=chart.name))
        text = msgspec.json.encode(_with_title(chart, spec(chart, width=_PICTURE_WIDTH))).decode()
        for each in formats:
            if each == "png":
                picture = vl_convert.vegalite_to_png(text, scale=_PIXELS_PER_POINT)
            else:
                picture = vl_convert.vegalite_to_svg(text).encode()
            paths.append(write_file(folder / f"{chart.name}.{each}", picture))
    watch(Progress(task="draw", done=len(charts), total=len(charts)))
    return tuple(paths)


def phase_scale(phases: Sequence[str]) -> "altair.Scale":
    """The colour scale of these phases, in this order; phases without a fixed colour get those that are left."""
    import altair

    taken = {PHASE_COLOURS[phase] for phase in phases if phase in PHASE_COLOURS}
    spare = [colour for colour in COLOURS if colour not in taken] or list(COLOURS)
    unknown = [phase for phase in phases if phase not in PHASE_COLOURS]
    own = {phase: spare[place % len(spare)] for place, phase in enumerate(unknown)}
    return altair.Scale(domain=list(phases), range=[PHASE_COLOURS.get(phase) or own[phase] for phase in phases])


def phase_bars(
    data: Any, phases: Sequence[str], *, x: "altair.X", y: "altair.Y | None" = None, names: Sequence[str] = ()
) -> "altair.Chart":
    """Stacked bars in the colours that phases have on every page; rows have phase, order, seconds and share, and `names`."""
    import altair

    told = [altair.Tooltip("seconds:Q", format=SECONDS), altair.Tooltip("share:Q", format=".1%")]
    bars: altair.Chart = (
        altair.Chart(data)
        .mark_bar()
        .encode(
            x=x,
            color=altair.Color("phase:N", title=None, scale=phase_scale(phases), sort=list(phases)),
            order=altair.Order("order:Q"),
            tooltip=[*(f"{name}:N" for name in names), "phase:N", *told],
        )
    )
    return bars if y is None else bars.encode(y=y)


def log_ticks(values: Iterable[float | str | int | bool | None]) -> list[float]:
    """Where a logarithmic axis over these values has its labels: powers of ten, and 2 and 5 between where those are few."""
    known = [float(value) for value in values if isinstance(value, int | float) and value > 0]
    steps = (1, 2, 5) if not known or max(known) <= _WIDE * min(known) else (1,)
    return [step * 10.0**power for power in range(-9, 17) for step in steps]


def metric_axis(metric: str, *, ticks: int | None = None) -> "altair.Axis":
    """Shares in per cent, an R2 as it is; about so many ticks."""
    import altair

    form = ".2f" if metric == "R2" else "~%"
    return altair.Axis(format=form) if ticks is None else altair.Axis(format=form, tickCount=ticks)


def share_axis(title: str | None) -> "altair.X":
    """Of the field `share`, parts of a whole: from nothing to all of it, both ends said."""
    import altair

    axis = altair.Axis(format=".0%", values=[0, 0.2, 0.4, 0.6, 0.8, 1])
    return altair.X("share:Q", title=title, axis=axis, scale=altair.Scale(domain=[0, 1], nice=False))


def _draw(chart: Chart) -> dict[str, Any]:
    """Rows are put in by name at the end: altair would check every value of thousands of rows."""
    import altair

    drawn: dict[str, Any] = chart.draw(altair.NamedData(name=_ROWS)).to_dict(validate=False)  # tests do that
    for theirs in ("config", "$schema", "usermeta"):  # the theme is ours; the page carries one version of Vega-Lite
        drawn.pop(theirs, None)
    rows = [{key: _finite(value) for key, value in row.items()} for row in chart.data]
    return drawn | {"datasets": {**drawn.get("datasets", {}), _ROWS: rows}}


def _count_height(drawn: dict[str, Any], rows: Sequence[Row]) -> None:
    """A height of so many pixels a name, as one number: Vega-Lite cannot fit the width of a chart without one."""
    asked = drawn.get("height", {"step": _STEP_PIXELS})
    encodings = [layer.get("encoding", {}) for layer in (drawn, *drawn.get("layer", ()))]
    names: dict[str, Any] = next((each["y"] for each in encodings if "field" in each.get("y", {})), {})
    if not isinstance(asked, dict) or names.get("type") not in ("nominal", "ordinal"):
        return
    beside = next((each["yOffset"]["field"] for each in encodings if "field" in each.get("yOffset", {})), None)
    num_lines = len({row.get(names["field"]) for row in rows}) * len({row.get(beside) for row in rows if beside} or {0})
    drawn["height"] = asked["step"] * max(1, num_lines)


def _finite(value: object) -> object:
    """JSON has no word for infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _with_title(chart: Chart, drawn: dict[str, Any]) -> dict[str, Any]:
    """A picture leaves its page: it carries its words."""
    return drawn | {
        "title": {"text": textwrap.wrap(chart.title, 78), "subtitle": textwrap.wrap(chart.caption, 104)},
    }
