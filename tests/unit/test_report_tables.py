"""Tables and rows of pages: the same numbers wherever they stand, and as little of them as a browser needs to begin."""

import json
import re
from pathlib import Path
from typing import Any

import altair
import pytest

from modelhound.analysis.search_tables import TextColumn
from modelhound.report.charts import Chart, log_ticks, share_axis, spec
from modelhound.report.flattening import flat_table
from modelhound.report.page import render_page
from modelhound.report.pages import build_page
from modelhound.report.parts import Cell, Page, Section, Table, plain_text
from modelhound.report.tables import text_table
from modelhound.report.theme import COLOUR_PAIRS
from modelhound.store import read_run
from report_runs import write_search
from verb_runs import write_verb_runs


@pytest.fixture(scope="module")
def verb_pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    found = write_verb_runs(tmp_path_factory.mktemp("runs"))
    return {verb: build_page([read_run(path)]) for verb, path in found.items()}


def tables_of(page: Page, section: str) -> list[Table]:
    (found,) = [each for each in page.sections if each.name == section]
    return [block for block in found.blocks if isinstance(block, Table)]


def column(table: Table, name: str) -> list[str]:
    place = [each.name for each in table.columns].index(name)
    return [row[place].text for row in table.rows]


def test_rows_that_do_not_know_a_column_have_a_dash_there() -> None:
    columns = {
        "model": TextColumn(texts=("a",), values=(None,), is_number=False),
        "size": TextColumn(texts=("1 k ",), values=(1e3,), note="of it"),
    }
    table = text_table("All", columns, more_rows=[{"model": Cell("b")}])
    assert [[cell.text for cell in row] for row in table.rows] == [["a", "1 k"], ["b", "–"]]
    assert [(each.is_number, each.note) for each in table.columns] == [(False, ""), (True, "of it")]


def test_a_cell_that_is_written_already_stays_so_and_keeps_its_place() -> None:
    rows: list[dict[str, Any]] = [{"n": Cell("10%", 0.1), "name": "a"}, {"n": Cell("9%", 0.09), "name": "b"}]
    table = flat_table("All", rows, in_order=True)
    assert table is not None
    assert [each.name for each in table.columns] == ["n", "name"]
    assert table.columns[0].is_number
    assert table.rows[0][0] == Cell("10%", 0.1)


def test_a_single_row_of_many_columns_is_read_downwards() -> None:
    table = flat_table("One", [{f"value_{place}": place for place in range(13)}])
    assert table is not None
    assert [each.name for each in table.columns] == ["what", "value"]
    assert [cell.text for cell in table.rows[2]] == ["value 2", "2"]


def test_the_model_time_is_the_same_on_the_page_of_a_search_and_beside_others(tmp_path: Path) -> None:
    first = write_search(tmp_path / "first", ["zoo:a", "zoo:b"], num_dropped=3)
    second = write_search(tmp_path / "second", ["zoo:a", "zoo:b"], seed=1)
    page = build_page([read_run(first)])
    (told,) = (found for each in page.sentences if (found := re.search(r"Where the (.*) of model", plain_text(each))))
    together = build_page([read_run(first), read_run(second)])
    assert column(tables_of(together, "overview")[0], "model time")[0] == told[1]


def test_what_is_the_same_in_all_runs_is_said_once(tmp_path: Path) -> None:
    runs = [read_run(write_search(tmp_path / str(seed), ["zoo:a", "zoo:b"], seed=seed)) for seed in (1, 2)]
    (table,) = tables_of(build_page(runs), "overview")
    assert "verb search" in table.caption
    assert "verb" not in [each.name for each in table.columns]


def test_runs_beside_each_other_say_in_which_settings_they_differ(tmp_path: Path) -> None:
    paths = [write_search(tmp_path / str(count), ["zoo:a", "zoo:b"], num_items=count) for count in (100, 200)]
    alike = [read_run(path) for path in (paths[0], write_search(tmp_path / "again", ["zoo:a", "zoo:b"], num_items=100))]
    (table,) = tables_of(build_page([read_run(path) for path in paths]), "overview")
    place = [each.name for each in table.columns].index("differs in")
    assert [row[place].text for row in table.rows] == ["limit 100", "limit 200"]
    (table,) = tables_of(build_page(alike), "overview")
    assert "differs in" not in [each.name for each in table.columns]


def test_many_rows_come_as_data_and_few_as_elements(tmp_path: Path) -> None:
    models = [f"zoo:</script>{place}" for place in range(600)]
    text = render_page(build_page([read_run(write_search(tmp_path / "run", models))]), sources="a test")
    assert text.count("<th scope=row class=k>zoo:") == 201  # and one in the table of notes
    (late,) = re.findall(r'<script type="application/json" class="late">(.*?)</script>', text, flags=re.DOTALL)
    rows = json.loads(late)
    assert len(rows) == 400
    assert rows[0][0][0].startswith("zoo:</script>")
    assert rows[0][1][1] > 1  # its rank, to sort by
    (data,) = re.findall(r'id="modelhound-chart-data">(.*?)</script>', text, flags=re.DOTALL)
    (size,) = [each["spec"]["datasets"]["rows"] for each in json.loads(data)["charts"] if each["name"] == "search_size"]
    assert len(size["parameters"]) == 600


def test_no_option_is_broken_into_lines() -> None:
    section = Section(name="s", title="t", lead="Say --fresh <now>, or a--b.", blocks=())
    text = render_page(Page(title="t", kicker="", answer=("x",), sections=(section,)), sources="a test")
    assert 'Say <span class="option">--fresh</span> &lt;now&gt;, or a--b.' in text


def test_every_verb_tells_its_answer_in_tables_of_its_own_words(verb_pages: dict[str, Page]) -> None:
    captions = {
        verb: [table.caption.partition(".")[0] for table in tables_of(page, "answer")]
        for verb, page in verb_pages.items()
    }
    assert captions == {
        "latency": ["What each sweep says", "Every point"],
        "loader": ["Regret of pairs", "Models"],
        "train": ["Runs", "More ranks"],
        "profile": ["What takes longest", "Where that changes", "What running less saves"],
        "breakeven": [
            "From how many models on searching takes longer",
            "What each job takes, and how many times as long as extracting features",
            "How the time of a search grows",
        ],
    }
    for page in verb_pages.values():
        for table in tables_of(page, "answer"):
            assert not any("None" in cell.text for row in table.rows for cell in row)


@pytest.mark.parametrize(
    ("values", "seen"), [([3.0, 40.0], [5.0, 10.0, 20.0]), ([0.001, 90.0, None], [0.001, 0.01, 0.1, 1.0, 10.0])]
)
def test_a_logarithmic_axis_has_a_few_round_labels(values: list[float | None], seen: list[float]) -> None:
    known = [each for each in values if each]
    ticks = [tick for tick in log_ticks(values) if min(known) <= tick <= max(known)]
    assert ticks == pytest.approx(seen)


def test_an_axis_of_shares_says_both_its_ends() -> None:
    axis = share_axis("x").to_dict()
    assert axis["scale"]["domain"] == [0, 1]
    assert {0, 1} <= set(axis["axis"]["values"])


def colours_in(value: Any) -> set[str]:
    """Every colour that a specification names, but for its rows and the theme."""
    if isinstance(value, dict):
        return set().union(
            *(colours_in(each) for name, each in value.items() if name not in ("datasets", "config")), set()
        )
    if isinstance(value, list):
        return set().union(*map(colours_in, value), set())
    is_colour = isinstance(value, str) and (value.startswith("#") or value in ("black", "white", "gray", "grey"))
    return {value} if is_colour else set()


def test_every_chart_is_valid_and_has_only_colours_that_have_a_dark_twin(
    verb_pages: dict[str, Page], tmp_path: Path
) -> None:
    search = build_page(
        [read_run(write_search(tmp_path / "run", ["zoo:a", "zoo:b", "zoo:c"], num_dropped=2, views=True))]
    )
    charts: list[Chart] = [chart for page in (*verb_pages.values(), search) for chart in page.charts]
    assert len(charts) > 25
    for chart in charts:
        chart.draw(altair.NamedData(name="rows")).to_dict()  # raises what Vega-Lite does not know
        assert colours_in(spec(chart)) <= set(COLOUR_PAIRS), chart.name
