"""What all charts of `hound latency` have in common: which models and settings there are, their colours, panels side by side.

In:  points of a sweep, and the rows that charts make of them
Out: names, an altair colour, charts in panels
Nothing here knows what a chart shows.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from modelhound.records import LatencyMeasured, LatencyPoint
from modelhound.report.charts import Row

if TYPE_CHECKING:
    import altair

__all__ = [
    "BATCH_LABEL",
    "FAMILIES",
    "AxisName",
    "colour_models",
    "family_of",
    "in_panels",
    "names_of",
    "setting_of",
]

AxisName = Literal["batch", "image", "sequence"]

FAMILIES = {"image": "networks of images", "text": "encoders of texts"}
BATCH_LABEL = "items in a batch"
_PANEL_WIDTH, _PANEL_HEIGHT = 300, 230
_COLUMNS = 2


def family_of(point: LatencyPoint) -> str:
    return "image" if point.image else "text"


def setting_of(point: LatencyPoint, axis: AxisName) -> str:
    """What stays the same along an axis: what a panel is of."""
    return f"{point.held_text(axis)}, {point.precision}, {point.device}"


def names_of(measured: Sequence[LatencyMeasured]) -> list[str]:
    """Of all models, always in the same order, so that each keeps its colour from chart to chart."""
    return sorted({record.model for record in measured})


def colour_models(names: Sequence[str], rows: Sequence[Row]) -> "altair.Color":
    """Models by colour; their names without source and organisation, which take room and tell little here.

    `names` are those of every chart of the family; the legend has those that are in these rows.
    """
    import altair

    there = {row.get("model") for row in rows}
    shown = [name for name in names if name in there]
    legend = altair.Legend(labelExpr="replace(datum.label, regexp('^.*[:/]'), '')", values=shown)
    return altair.Color("model:N", title=None, scale=altair.Scale(domain=list(names)), legend=legend)


def in_panels(drawn: Any, rows: Sequence[Row]) -> Any:
    """One panel for each setting, small numbers first; a single one fills the page."""
    import altair

    settings = sorted({str(row["setting"]) for row in rows}, key=_by_number)
    if len(settings) < 2:
        return drawn.properties(height=_PANEL_HEIGHT)
    panels = altair.Facet("setting:N", title=None, sort=settings)
    return drawn.properties(width=_PANEL_WIDTH, height=_PANEL_HEIGHT).facet(facet=panels, columns=_COLUMNS)


def _by_number(setting: str) -> tuple[float | str, ...]:
    """Batch 2 before batch 16."""
    words = re.split(r"(\d+)", setting)
    return tuple(float(word) if place % 2 else word for place, word in enumerate(words))
