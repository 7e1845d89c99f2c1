"""Colours, and how every chart looks in light and in dark.

In:  nothing
Out: colours by name, and Vega-Lite configurations
Every colour here can be told from its neighbours by colour-blind people and stands out enough from its background: tests
compute both. Nothing here knows what is drawn.
"""

from dataclasses import dataclass
from typing import Any

__all__ = [
    "COLOURS",
    "COLOUR_PAIRS",
    "DARK",
    "DARK_COLOURS",
    "GREY",
    "HALOS",
    "LIGHT",
    "PHASE_COLOURS",
    "Surface",
    "chart_config",
    "darken",
]

COLOURS = ("#3350d7", "#da7a10", "#008b6c", "#aa319c", "#0099c2", "#8a6a00", "#9b1c31", "#5a2782")
"""On light backgrounds, in order of use: blue, orange, green, magenta, sky, olive, crimson, purple."""

DARK_COLOURS = ("#7281ff", "#fd9f2e", "#57cbad", "#d272bc", "#56ddff", "#efd765", "#ff6866", "#b69cff")
"""The same eight on dark backgrounds."""

GREY, _DARK_GREY = "#7b8494", "#7f8998"

_BLUE, _ORANGE, _GREEN, _MAGENTA, _SKY, _OLIVE, _CRIMSON, _PURPLE = COLOURS

PHASE_COLOURS = {
    # of every model, wherever it is run
    "read weights": _BLUE,
    "build model": _SKY,
    "weights to device": _PURPLE,
    "wait for weights": _CRIMSON,
    "wait for data": _ORANGE,
    "decode": _ORANGE,
    "first batch": _MAGENTA,
    "data to device": _OLIVE,
    "forward": _GREEN,
    "score": _MAGENTA,
    "keep features": _OLIVE,
    # of training, which has none of the first three in its steps
    "backward": _BLUE,
    "communication": _CRIMSON,
    "optimiser": _SKY,
    "logging": _PURPLE,
    "other": GREY,
}
"""A phase has the same colour on every page; phases that stand beside each other have different ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """What a page or a chart is drawn on and with."""

    background: str
    raised: str
    """Of cards and table heads, a little off the background."""
    text: str
    muted: str
    """Of captions and axis labels."""
    line: str
    """Of borders and grids: decoration, never the only sign of anything."""
    accent: str
    """Of links and of what can be pressed."""
    on_accent: str
    good: str


LIGHT = Surface(
    background="#ffffff",
    raised="#f6f7f9",
    text="#14181f",
    muted="#5a6372",
    line="#dfe3e9",
    accent=_BLUE,
    on_accent="#ffffff",
    good="#00705a",
)

DARK = Surface(
    background="#12151b",
    raised="#1b2028",
    text="#e9edf3",
    muted="#a1abba",
    line="#323a46",
    accent="#93a4ff",
    on_accent="#0d1017",
    good="#57cbad",
)

_FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"

HALOS: tuple[dict[str, Any], ...] = (
    {"stroke": LIGHT.background, "strokeWidth": 4, "strokeJoin": "round"},
    {},
)
"""Words over lines are written twice, first with a rim of the background that keeps lines away from them."""

COLOUR_PAIRS = {
    **dict(zip(COLOURS, DARK_COLOURS, strict=True)),
    GREY: _DARK_GREY,
    LIGHT.background: DARK.background,
    LIGHT.text: DARK.text,
    LIGHT.muted: DARK.muted,
    LIGHT.line: DARK.line,
}
"""Every colour on light backgrounds, and the one that takes its place on dark ones."""


def chart_config(*, dark: bool = False) -> dict[str, Any]:
    """The `config` of every Vega-Lite specification."""
    surface = DARK if dark else LIGHT
    colours = DARK_COLOURS if dark else COLOURS
    return {
        "background": surface.background,
        "font": _FONT,
        "padding": 4,
        "view": {"stroke": None, "continuousHeight": 280, "continuousWidth": 480},
        "range": {
            "category": list(colours),
            "heatmap": _ramp(dark),
            "ramp": _ramp(dark),
            "ordinal": _ramp(dark),
            "diverging": _diverging(dark),
        },
        "axis": {
            "domainColor": surface.line,
            "tickColor": surface.line,
            "gridColor": surface.line,
            "gridOpacity": 0.7,
            "labelColor": surface.muted,
            "titleColor": surface.muted,
            "titleFontWeight": 500,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "labelLimit": 220,
            "titlePadding": 8,
        },
        "axisX": {"labelOverlap": "greedy", "labelSeparation": 8},
        "axisY": {"domain": False, "ticks": False},
        "legend": {
            "labelColor": surface.text,
            "titleColor": surface.muted,
            "titleFontWeight": 500,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "labelLimit": 240,
            "orient": "top",
            "symbolStrokeWidth": 2,
            "symbolOpacity": 1,
            "columns": 4,
        },
        **_title_config(surface),
        "mark": {"color": colours[0]},
        "line": {"strokeWidth": 2},
        "point": {"filled": True, "size": 60},
        "bar": {
            "stroke": surface.background,
            "strokeWidth": 1,
        },  # a gap, so that neighbours are told apart without colour
        "rule": {"color": surface.muted},
        "text": {"color": surface.text, "fontSize": 11},
        "errorband": {"band": {"opacity": 0.18}},
    }


def darken(value: Any) -> Any:
    """A specification, or any part of one, with its colours replaced by those for dark backgrounds; rows stay."""
    if isinstance(value, dict):
        return {key: each if key == "datasets" else darken(each) for key, each in value.items()}
    if isinstance(value, list):
        return [darken(each) for each in value]
    return COLOUR_PAIRS.get(value.lower(), value) if isinstance(value, str) and value.startswith("#") else value


def _title_config(surface: Surface) -> dict[str, Any]:
    """Of charts that leave their page, and of panels side by side."""
    return {
        "header": {"labelColor": surface.text, "titleColor": surface.muted, "labelFontWeight": 500},
        "title": {
            "color": surface.text,
            "subtitleColor": surface.muted,
            "anchor": "start",
            "fontSize": 15,
            "subtitleFontSize": 12,
            "fontWeight": 600,
            "offset": 14,
        },
    }


def _ramp(dark: bool) -> list[str]:
    """From little to much: light to strong on light backgrounds, the other way round on dark ones."""
    if dark:
        return ["#1f2740", "#2f4080", "#4a62c4", "#7d97f0", "#b9c9ff", "#eef2ff"]
    return ["#eef2ff", "#bccaf9", "#8aa1ee", "#5b78df", "#3350d7", "#1d2f86"]


def _diverging(dark: bool) -> list[str]:
    """Orange, nothing, blue: told apart by everybody."""
    middle = "#2a303a" if dark else "#f2f3f5"
    ends = ("#fd9f2e", "#7281ff") if dark else ("#b95f00", "#3350d7")
    return [ends[0], middle, ends[1]]
