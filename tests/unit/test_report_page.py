"""Pages: the answer first, everything escaped, nothing from outside, small enough whatever the number of models."""

import html
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import modelhound
from modelhound.errors import RequestError
from modelhound.records import ModelMeasured, PhaseSamples, Ranking, RunStarted, to_plain
from modelhound.report.charts import spec
from modelhound.report.commands import command_to_repeat
from modelhound.report.markdown import render_markdown
from modelhound.report.page import render_page
from modelhound.report.pages import build_page
from modelhound.report.parts import Branch, Cell, Column, Page, Section, Table, Tree, plain_text
from modelhound.report.search_charts import size_chart, speed_chart
from modelhound.report.search_view import view_search
from modelhound.settings import METRICS
from modelhound.store import Run, RunFolder, read_run
from report_runs import MACHINE, ODD_NAMES, append_all, drop, write_search


def page_of(*paths: Path) -> Page:
    return build_page([read_run(path) for path in paths])


def html_of(*paths: Path) -> str:
    return render_page(page_of(*paths), sources="a test")


def body_of(text: str) -> str:
    """What is shown, without scripts and style."""
    return re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL)


def section_names(page: Page) -> list[str]:
    return [section.name for section in page.sections]


def test_the_page_answers_which_model_how_sure_how_fast_and_why(tmp_path: Path) -> None:
    page = page_of(write_search(tmp_path / "run", ["zoo:best", "zoo:middle", "zoo:worst"], num_items=400))
    assert plain_text(page.answer).startswith("zoo:best suits fashion best: ")
    assert ", 95% interval)" in plain_text(page.answer)
    assert [figure.question for figure in page.figures] == ["Which model", "How sure", "How fast", "Why"]
    assert page.figures[1].value == ">99% chance"  # resampling never makes certain
    assert "over middle, the first that is clearly worse" in page.figures[3].note
    assert page.next_steps == (("Fine-tune it on all items", "hound train fashion --model zoo:best"),)
    (time,) = (plain_text(sentence) for sentence in page.sentences)
    assert time.startswith("Where the ")
    assert time.endswith("of model time went (cpu): forward 60%, score 20%, read weights 10%, other 10%.")


def test_the_page_holds_every_section_that_has_records(tmp_path: Path) -> None:
    models = [f"zoo:m{place}" for place in range(5)]
    full = page_of(write_search(tmp_path / "full", models, failures=("zoo:broken",), num_dropped=3, views=True))
    assert section_names(full) == [
        "ranking",
        "trade-offs",
        "race",
        "time",
        "plan",
        "scorers",
        "items",
        "failures",
        "machine",
        "commands",
    ]
    assert "1 model failed: why stands under What did not work." in map(plain_text, full.sentences)
    bare = page_of(write_search(tmp_path / "bare", models))
    assert not {"race", "plan", "items"} & set(section_names(bare))
    charts = [chart.name for chart in full.charts]
    assert len(set(charts)) == len(charts)
    assert {"search_ranking", "search_speed", "search_size", "search_race", "search_timeline", "search_map"} <= set(
        charts
    )


def test_the_ranking_table_has_all_models_and_those_dropped_last(tmp_path: Path) -> None:
    page = page_of(write_search(tmp_path / "run", ["zoo:a", "zoo:b"], num_dropped=2))
    table = next(block for block in page.sections[0].blocks if isinstance(block, Table))
    assert [row[0].text for row in table.rows] == ["zoo:a", "zoo:b", "zoo:dropped-0", "zoo:dropped-1"]
    assert table.rows[2][1].text == "dropped"
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_front_holds_exactly_the_models_that_no_other_beats(tmp_path: Path) -> None:
    view = view_search(read_run(write_search(tmp_path / "run", [f"zoo:m{place}" for place in range(40)])))
    for chart, cost, sign in (
        (size_chart(view.ranking), "parameters", 1),
        (speed_chart(view.ranking, view.measured), "items_per_second", -1),
    ):
        assert chart is not None
        for row in chart.data:
            beaten = any(
                other["score"] >= row["score"]
                and sign * other[cost] <= sign * row[cost]
                and (other["score"], other[cost]) != (row["score"], row[cost])
                for other in chart.data
            )
            assert (row["is"] == "beaten") == beaten
        labels = [row["label"] for row in chart.data if row["label"]]
        assert labels
        assert len(labels) <= 12


def test_a_model_without_parameters_leaves_the_chart_of_sizes_to_the_others(tmp_path: Path) -> None:
    """As a control of one's own: on a logarithmic axis one size of nothing would leave no other a place."""
    ranking = view_search(read_run(write_search(tmp_path / "run", ["py:pixels", "zoo:a", "zoo:b"]))).ranking
    first, *others = ranking.models
    mixed = msgspec.structs.replace(ranking, models=(msgspec.structs.replace(first, num_parameters=0), *others))
    chart = size_chart(mixed)
    assert chart is not None
    assert sorted(str(row["model"]) for row in chart.data) == sorted(row.model for row in others)
    assert chart.caption.endswith("1 model without parameters left out.")
    assert size_chart(msgspec.structs.replace(mixed, models=mixed.models[:2])) is None


def test_a_run_without_successes_says_so_and_shows_why(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", [], failures=("zoo:one", "zoo:two"))
    page = page_of(path)
    assert plain_text(page.answer) == "No model could be measured."
    assert page.figures == ()
    assert section_names(page) == ["failures", "machine", "commands"]
    text = html_of(path)
    assert "cannot read &#39;zoo:one&#39;" in text
    assert "vegaEmbed=" not in text  # nothing to draw, so nothing to draw it with


@pytest.mark.parametrize(
    ("verb", "changed"),
    [
        ("search", {"seed": "seven"}),
        ("search", {"models": 5}),
        ("latency", {"seconds": "long"}),
        ("profile", {"items": ["many"]}),
        ("train", {"epochs": [1]}),
    ],
)
def test_a_request_that_somebody_has_changed_is_refused_in_a_sentence(
    tmp_path: Path, verb: str, changed: dict[str, object]
) -> None:
    run = Run(
        path=tmp_path, verb=verb, at="2026-11-19T10:00:00", settings=changed, records=(), headline="", answer=None
    )
    ((name, given),) = changed.items()
    with pytest.raises(
        RequestError, match=re.escape(f"expected its request as it was written, found {name} of {given!r}")
    ):
        build_page([run])


def test_one_model_makes_a_page(tmp_path: Path) -> None:
    page = page_of(write_search(tmp_path / "run", ["zoo:only"]))
    assert [figure.value for figure in page.figures][-1] == "the only one"
    assert "trade-offs" not in section_names(page)
    assert "<strong>zoo:only</strong>" in render_page(page, sources="a test")


def test_one_model_that_all_others_lost_to_is_not_called_the_only_one(tmp_path: Path) -> None:
    page = page_of(write_search(tmp_path / "run", ["zoo:a"], num_dropped=2))
    assert plain_text(page.answer).startswith("zoo:a suits fashion best: ")
    why = page.figures[-1]
    assert why.value == "last in the race"
    assert why.note.startswith("2 others left early, with a chance of at most 0.4% to be among the best 5")


def test_an_unfinished_run_shows_what_there_is_so_far(tmp_path: Path) -> None:
    finished = page_of(write_search(tmp_path / "a", ["zoo:a", "zoo:b"], num_dropped=1))
    running = page_of(write_search(tmp_path / "b", ["zoo:a", "zoo:b"], num_dropped=1, finish=False))
    assert running.is_running
    assert not finished.is_running
    told = plain_text(finished.answer).partition(": ")[2]
    assert plain_text(running.answer) == f"So far zoo:a leads on fashion: {told}"
    assert plain_text(running.sentences[0]) == (
        "2 models measured on all items, 1 left the race. The order may still change."
    )
    assert running.figures[0].note.endswith("the best of 3 models so far")
    nothing = page_of(write_search(tmp_path / "c", [], finish=False))
    assert plain_text(nothing.answer) == "No model has been measured yet."


def test_odd_names_come_out_as_they_are_and_never_as_markup(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", list(ODD_NAMES), failures=ODD_NAMES[:2], views=True)
    text = html_of(path)
    shown = body_of(text)
    for name in ODD_NAMES:
        assert name in html.unescape(shown)
    for markup in ("<script>alert", "<b>of</b>", "<b>dog</b>", "<tags>"):
        assert markup not in text
    assert text.count("</script>") == text.count("<script")
    data = re.search(
        r'<script type="application/json" id="modelhound-chart-data">(.*?)</script>', text, flags=re.DOTALL
    )
    assert data is not None
    document = msgspec.json.decode(data[1])
    rows = next(each for each in document["charts"] if each["name"] == "search_speed")["spec"]["datasets"]["rows"]
    assert {row["model"] for row in rows} >= set(ODD_NAMES[:3])


def test_two_long_names_that_begin_and_end_alike_stay_two_rows(tmp_path: Path) -> None:
    models = [f"zoo:{'a' * 150}{place}{'b' * 150}" for place in range(3)]
    page = page_of(write_search(tmp_path / "run", models))
    ranking = next(chart for chart in page.charts if chart.name == "search_ranking")
    assert len({row["model"] for row in ranking.data}) == 3
    assert all(len(str(row["model"])) < 70 for row in ranking.data)


def test_the_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    text = html_of(write_search(tmp_path / "run", ["zoo:a", "zoo:b"], views=True))
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]+)"', text)[0])
    assert "connect-src 'none'" in policy
    assert "default-src 'none'" in policy
    without_scripts = re.sub(r"<script\b.*?</script>", "", text, flags=re.DOTALL)
    assert not re.findall(r"(?:src|href)=(?![\"'](?:#|data:))", without_scripts)
    assert not re.findall(r"url\((?!data:)", without_scripts)
    assert "@import" not in without_scripts


def test_the_page_of_a_hundred_models_is_under_3_megabytes(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", [f"timm:a_model_{place}" for place in range(100)], num_dropped=50, views=True)
    assert len(html_of(path).encode()) < 3_000_000


def test_the_page_of_two_thousand_models_is_under_8_megabytes_and_its_charts_stay_readable(tmp_path: Path) -> None:
    models = [f"timm:a_model_with_a_name_of_usual_length_{place}" for place in range(2000)]
    path = write_search(tmp_path / "run", models, views=True)
    page = page_of(path)
    assert len(render_page(page, sources="a test").encode()) < 8_000_000
    sizes = {chart.name: len({row.get("model") for row in chart.data}) for chart in page.charts}
    assert sizes["search_ranking"] <= 24
    assert sizes["search_phases"] <= 24
    assert sizes["search_speed"] == 2000
    plan = next(section for section in page.sections if section.name == "plan").blocks[0]
    assert isinstance(plan, Tree)
    assert plan.branches[0].children[0].children[-1].label == "and 1,960 more models"


def test_the_commands_repeat_what_was_asked_and_no_more(tmp_path: Path) -> None:
    page = page_of(write_search(tmp_path / "run", ["zoo:it's", "zoo:b"]))
    text = render_markdown(page, pictures={}, sources="a test")
    assert "hound search fashion --limit 120 --models 'zoo:it'\"'\"'s,zoo:b'" in text
    assert "hound train fashion --model 'zoo:it'\"'\"'s'" in text


@pytest.mark.parametrize(
    ("verb", "asked", "option"), [("breakeven", {"pool": "none"}, "--pool"), ("profile", {"joint": "none"}, "--joint")]
)
def test_a_command_says_what_was_left_out_on_purpose(verb: str, asked: dict[str, str], option: str) -> None:
    settings = getattr(modelhound, f"{verb.capitalize()}Settings")("digits", **asked)
    assert command_to_repeat(verb, to_plain(settings)) == f"hound {verb} digits {option} none"


def test_while_it_runs_a_search_is_measured_by_what_it_found_to_be_told(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", ["zoo:a"], finish=False)
    RunFolder(path).append(RunStarted(at="2026", device="cpu", machine=MACHINE, task="regression"))
    assert view_search(read_run(path)).ranking.metric == METRICS["regression"]


def test_several_runs_are_compared_on_one_page(tmp_path: Path) -> None:
    first = write_search(tmp_path / "first", ["zoo:a", "zoo:b", "zoo:c"])
    second = write_search(tmp_path / "second", ["zoo:a", "zoo:c", "zoo:d"], seed=1)
    page = page_of(first, second)
    assert plain_text(page.answer) == "zoo:a is the best in both runs."
    assert section_names(page) == ["overview", "common", "run-1", "run-2"]
    scores = next(chart for chart in page.charts if chart.name == "compare_scores")
    assert {(row["run"], row["model"]) for row in scores.data} == {
        (run, model) for run in ("first", "second") for model in ("zoo:a", "zoo:c")
    }
    assert len({chart.name for chart in page.charts}) == len(page.charts)
    text = render_page(page, sources="a test")
    identities = re.findall(r'\bid="([^"]+)"', body_of(text))
    assert len(set(identities)) == len(identities)


def test_a_run_that_did_not_measure_the_best_does_not_disagree(tmp_path: Path) -> None:
    runs = [write_search(tmp_path / f"run-{place}", ["zoo:a", "zoo:b"], seed=place) for place in range(2)]
    page = page_of(*runs, write_search(tmp_path / "other", ["zoo:c"]))
    assert plain_text(page.answer) == "zoo:a is the best in both runs that measured it, of 3."


def test_runs_in_which_no_model_beats_guessing_have_no_best_model(tmp_path: Path) -> None:
    runs = [write_search(tmp_path / f"run-{place}", ["zoo:a", "zoo:b"], seed=place) for place in range(2)]
    for path in runs:
        ranking = msgspec.structs.replace(view_search(read_run(path)).ranking, guess=0.9, is_guess_beaten=False)
        RunFolder(path).write_answer(ranking, headline="no model is clearly better than guessing")
    assert plain_text(page_of(*runs).answer) == "2 runs side by side."
    assert page_of(runs[0]).title == "No answer · fashion · modelhound"


def test_scores_of_different_kinds_are_not_drawn_on_one_axis(tmp_path: Path) -> None:
    runs = [write_search(tmp_path / f"run-{place}", ["zoo:a", "zoo:b"], seed=place) for place in range(2)]
    ranking = msgspec.structs.replace(view_search(read_run(runs[1])).ranking, metric="R2")
    RunFolder(runs[1]).write_answer(ranking, headline="zoo:a")
    page = page_of(*runs)
    assert {chart.name for chart in page.charts if chart.name.startswith("compare")} == {"compare_speed"}
    (common,) = [section for section in page.sections if section.name == "common"]
    assert common.lead.endswith("Scores are not drawn: R2 and accuracy do not go on one axis.")


def test_no_runs_are_refused() -> None:
    with pytest.raises(RequestError, match="no runs"):
        build_page([])


def test_a_tree_that_is_cut_in_markdown_says_so() -> None:
    tree = Tree(caption="Steps", branches=tuple(Branch(label=f"step {place}") for place in range(230)))
    page = Page(title="t", kicker="", answer=("x",), sections=(Section(name="s", title="t", blocks=(tree,)),))
    text = render_markdown(page, pictures={}, sources="a test")
    assert "- step 199\n\n30 more steps are on the page.\n" in text
    assert "step 200" not in text


def test_markdown_shows_pictures_and_keeps_odd_names_as_text(tmp_path: Path) -> None:
    page = page_of(write_search(tmp_path / "run", list(ODD_NAMES), views=True))
    text = render_markdown(page, pictures={"search_ranking": "charts/search ranking.png"}, sources="a test")
    assert "](charts/search%20ranking.png)" in text
    prose = re.sub(r"(`{3,})sh\n.*?\n\1", "", text, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<", prose)
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert all(len(re.findall(r"(?<!\\)\|", line)) >= 3 for line in rows)


def test_a_table_cell_keeps_what_it_is_sorted_by() -> None:
    table = Table(
        caption="c",
        columns=(Column(name="n"), Column(name="v", is_number=True)),
        rows=((Cell("<a>"), Cell("1 k", 1e3)),),
    )
    section = Section(name="s", title="t", blocks=(table,))
    text = render_page(Page(title="t", kicker="", answer=("x",), sections=(section,)), sources="a test")
    assert "<th scope=row class=k>&lt;a&gt;</th><td class=n data-v=1000.0>1 k</td>" in text
    assert "<caption>c</caption>" in text


def test_every_chart_of_a_search_can_be_drawn_in_light_and_dark(tmp_path: Path) -> None:
    page = page_of(write_search(tmp_path / "run", [f"zoo:m{place}" for place in range(4)], num_dropped=2, views=True))
    for chart in page.charts:
        light, dark = spec(chart), spec(chart, dark=True)
        assert light["datasets"]["rows"] == dark["datasets"]["rows"]
        assert light["config"] != dark["config"]


def test_a_ranking_of_another_version_is_made_again_from_the_records(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", ["zoo:a", "zoo:b"])
    (path / "answer.json").write_text('{"headline": "zoo:a", "answer": {"old": 1}}')
    assert plain_text(page_of(path).answer).startswith("zoo:a suits fashion best")
    assert isinstance(view_search(read_run(path)).ranking, Ranking)


def test_a_model_that_was_dropped_and_measured_later_counts_once(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", ["zoo:a", drop(0, 120).model], num_dropped=1)
    assert view_search(read_run(path)).dropped == ()


def test_models_that_only_an_earlier_start_was_asked_for_did_not_leave_this_race(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", ["zoo:a", "zoo:b"], num_dropped=2)
    append_all(RunFolder(path), [drop(7, 120)])
    view = view_search(read_run(path))
    assert sorted(each.model for each in view.dropped) == ["zoo:dropped-0", "zoo:dropped-1"]


def test_a_page_is_made_without_loading_torch(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", ["zoo:a", "zoo:b"])
    script = (
        "import sys; from modelhound.cli import run; "
        f"code = run(['report', {str(path)!r}]); sys.exit(code or ('torch' in sys.modules) * 7)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0


def test_features_that_were_remembered_say_nothing_of_speed(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", ["zoo:a", "zoo:b", "zoo:c"])
    file = path / "records.jsonl"
    run = read_run(path)
    remembered = [
        msgspec.structs.replace(each, phases=(PhaseSamples(phase="score", seconds=(0.1,)),))
        for each in run.of(ModelMeasured)
        if each.model != "zoo:b"
    ]
    append_all(RunFolder(path), remembered)
    assert file.read_bytes().count(b'"kind":"model"') == 5
    page = page_of(path)
    assert next(each.value for each in page.figures if each.question == "How fast") == "not run"
    (table,) = [block for block in page.sections[0].blocks if isinstance(block, Table)]
    place = [column.name for column in table.columns].index("items/s")
    assert [row[place].text == "–" for row in table.rows] == [True, False, True]
    assert "search_speed" not in [chart.name for chart in page.charts]  # one that was run is nothing to compare
    assert "search_size" in [chart.name for chart in page.charts]
    last = [each for each in run.of(ModelMeasured) if each.model == "zoo:b"]
    append_all(RunFolder(path), [msgspec.structs.replace(last[0], phases=remembered[0].phases)])
    (told,) = [section for section in page_of(path).sections if section.name == "time"]
    assert "No features had to be made" in told.lead
    assert told.blocks == ()  # bars that are all "other" show nothing
