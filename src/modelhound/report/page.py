"""A page as one HTML file that opens anywhere and asks nobody for anything.

In:  a Page
Out: HTML with its style, its scripts, its data and the chart runtime inside
Every text is escaped by the template engine. The page forbids itself every connection (Content-Security-Policy), except a live
page the one to its own server. Nothing here knows records.
"""

import base64
import contextlib
import functools
import importlib.metadata
import re
from dataclasses import asdict
from importlib import resources
from typing import Any

import jinja2
import msgspec
from markupsafe import Markup, escape

from modelhound import __version__
from modelhound.errors import RequestError
from modelhound.report.charts import spec
from modelhound.report.parts import Cell, Column, Page, Picture, Strong, Table
from modelhound.report.theme import COLOUR_PAIRS, DARK, LIGHT, Surface, chart_config
from modelhound.report.writing import write_file
from modelhound.store import cache_folder

__all__ = ["render_page"]

_SHORT_NAME = 44  # characters that are never broken into lines where there is room
_SHORT_TEXT = 24  # the same of what stands beside a name
_MOST_ELEMENTS = 200  # rows of a table that are there as HTML; those after them are made when they are looked for
_PACKED = 500  # rows of a chart from which on their names are told once
_DIGITS = 6
_FEW = 32  # different texts in a column of thousands


def render_page(page: Page, *, sources: str, live: str = "") -> str:
    """The HTML of a page made from `sources`; `live` is the version of a page that follows a running search."""
    places = {chart.name: place for place, chart in enumerate(page.charts)}
    return (
        _engine()
        .get_template("page.html")
        .render(
            page=page,
            sources=sources,
            live=live,
            version=__version__,
            icon=_ICON,
            places=places,
            css=Markup(_css()),
            early_script=Markup(_asset("early.js")),
            script=Markup(_asset("page.js")),
            specs=_as_script_data(_chart_document(page)) if page.charts else "",
            vega=Markup(_vega()) if page.charts or live else "",
        )
    )


@functools.cache
def _engine() -> jinja2.Environment:
    engine = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    engine.tests["strong"] = lambda piece: isinstance(piece, Strong)
    engine.filters["kind"] = lambda block: type(block).__name__
    engine.filters["rows"] = _table_rows
    engine.filters["late_rows"] = _late_rows
    engine.filters["data_uri"] = _data_uri
    engine.filters["told"] = _told
    engine.filters["command"] = _command
    return engine


def _asset(name: str) -> str:
    return (resources.files("modelhound.report") / "assets" / name).read_text(encoding="utf-8")


def _told(text: str) -> Markup:
    """A text in which no option is broken after its hyphens."""
    return Markup(re.sub(r"(?<![\w-])--[a-z][a-z-]*", r'<span class="option">\g<0></span>', str(escape(text))))


def _command(line: str) -> Markup:
    """A command line that is broken at its spaces, or after a comma of a long list, and within no option."""
    return Markup(str(_told(line)).replace(",", ",<wbr>"))


def _table_rows(table: Table) -> Markup:
    """The first rows; by hand, since a page can have thousands of cells."""
    lines = []
    for row in table.rows[:_MOST_ELEMENTS]:
        cells = zip(row, table.columns, strict=True)
        lines.append("".join(_cell(cell, column, place == 0) for place, (cell, column) in enumerate(cells)))
    return Markup("".join(f"<tr>{line}</tr>\n" for line in lines))


def _cell(cell: Cell, column: Column, is_first: bool) -> str:
    tag = "th scope=row" if is_first else "td"
    sort_by = f" data-v={_short(cell.sort_by)!r}" if cell.sort_by is not None else ""
    return f"<{tag}{_cell_kind(cell, column, is_first)}{sort_by}>{escape(cell.text)}</{tag[:2]}>"


def _cell_kind(cell: Cell, column: Column, is_first: bool) -> str:
    """Of numbers, long texts and short names, which are not broken the same way."""
    is_long = len(cell.text) > _SHORT_NAME
    is_short = is_first or len(cell.text) <= _SHORT_TEXT
    return " class=n" if column.is_number else " class=w" if is_long else " class=k" if is_short else ""


def _late_rows(table: Table) -> Markup | str:
    """The other rows as data, each cell a text and what it is sorted by: thousands of elements would be slow to open."""
    late = table.rows[_MOST_ELEMENTS:]
    if not late:
        return ""
    cells = [
        [[cell.text] if cell.sort_by is None else [cell.text, _short(cell.sort_by)] for cell in row] for row in late
    ]
    return _as_script_data(cells)


def _short(value: float) -> float:
    """With as many digits as anybody sees."""
    return float(f"{value:.{_DIGITS}g}")


def _data_uri(picture: Picture) -> str:
    return f"data:{picture.content_type};base64,{base64.b64encode(picture.content).decode()}"


def _chart_document(page: Page) -> dict[str, Any]:
    """All specifications without theme, and both themes once."""
    charts = []
    for chart in page.charts:
        drawn = spec(chart)
        del drawn["config"]
        drawn["datasets"] = {name: _packed(rows) for name, rows in drawn["datasets"].items()}
        charts.append({"name": chart.name, "title": chart.title, "caption": chart.caption, "spec": drawn})
    configs = {"light": chart_config(), "dark": chart_config(dark=True)}
    return {"charts": charts, "configs": configs, "colours": COLOUR_PAIRS}


def _packed(rows: list[dict[str, Any]]) -> list[dict[str, Any]] | dict[str, Any]:
    """Many rows of the same names as one column for each name."""
    names = rows[0].keys() if rows else ()
    if len(rows) < _PACKED or any(row.keys() != names for row in rows):
        return rows
    return {name: _column([row[name] for row in rows]) for name in names}


def _column(values: list[Any]) -> list[Any] | dict[str, Any]:
    """The values; of a few texts that come again and again, each text once and where it stands."""
    if not any(isinstance(value, float | int) for value in values):
        places = {value: place for place, value in enumerate(dict.fromkeys(values))}
        if len(places) <= _FEW:
            return {"of": list(places), "at": [places[value] for value in values]}
    return [_short(value) if isinstance(value, float) else value for value in values]


def _as_script_data(document: Any) -> Markup:
    """JSON that cannot end the script element it stands in, whatever a model is called."""
    text = msgspec.json.encode(document).decode()
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


@functools.cache
def _vega() -> str:
    """Vega, Vega-Lite and Vega-Embed, from the package that also draws pictures; in a scope of its own."""
    import vl_convert

    kept = cache_folder() / f"vega-{importlib.metadata.version('vl-convert-python')}.js"
    try:
        bundle = kept.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # bundling takes a second, which not every report should cost
        bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
        with contextlib.suppress(RequestError):
            write_file(kept, bundle.encode())
    return f"(()=>{{{bundle}}})();".replace("</script", "<\\/script")


@functools.cache
def _css() -> str:
    light, dark = _variables(LIGHT), _variables(DARK)
    return "\n".join(
        [
            _asset("page.css"),
            f":root {{ {light} }}",
            f"@media screen {{ :root[data-theme=dark] {{ color-scheme: dark; {dark} }} }}",
            "@media screen and (prefers-color-scheme: dark) "
            f"{{ :root:not([data-theme=light]) {{ color-scheme: dark; {dark} }} }}",
        ]
    )


def _variables(surface: Surface) -> str:
    named = {**asdict(surface), "control": surface.muted}
    return " ".join(f"--{name.replace('_', '-')}: {value};" for name, value in named.items())


_ICON_PATH = "M3 20V11l4-7 3 4h6l5 4-1 3h-5l-2 5z"
_ICON_SVG = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24"><path fill="{LIGHT.accent}" d="{_ICON_PATH}"/></svg>'
)
_ICON = "data:image/svg+xml;base64," + base64.b64encode(_ICON_SVG.encode()).decode()
