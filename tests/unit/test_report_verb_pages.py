"""The page of every verb answers on its first screen: what, how sure, how fast, why."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import pytest

from latencies import CEILINGS, record
from modelhound.analysis.latency import find_laws
from modelhound.records import (
    ConfigurationProfiled,
    LatencyFailed,
    LatencyMeasured,
    ProfileFindings,
    RankTrained,
    Record,
)
from modelhound.report.page import render_page
from modelhound.report.pages import build_page
from modelhound.report.parts import Page, Table, plain_text
from modelhound.report.profile_charts import profile_charts
from modelhound.store import open_run, read_run
from modelhound.verbs.profile import _headline
from report_runs import AT
from verb_runs import write_verb_runs


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    found = write_verb_runs(tmp_path_factory.mktemp("runs"))
    return {verb: build_page([read_run(path)]) for verb, path in found.items()}


def figures_of(page: Page) -> dict[str, str]:
    return {figure.question: figure.value for figure in page.figures}


def test_latency_says_by_which_law_times_grow_and_what_bounds_them(pages: dict[str, Page]) -> None:
    page = pages["latency"]
    assert plain_text(page.answer) == "The time of a call is proportional to batch size in 1 of 2 sweeps."
    figures = figures_of(page)
    assert list(figures) == ["Shortest call", "Most items", "How sure", "Why"]
    assert figures["Shortest call"] == "993 µs"
    assert page.figures[1].note == "tv:alexnet, batch 16, image 224, fp32 on cuda:0"
    claim, meaning, failed = (plain_text(each) for each in page.sentences)
    assert meaning == "A sweep is one model timed at several sizes."
    assert claim == "H1, proportional to batch size: holds for resnet18; does not hold for alexnet."
    assert failed == "1 failure: what and why stands under What did not work."
    (table,) = next(section.blocks for section in page.sections if section.name == "failures")
    assert isinstance(table, Table)
    assert [cell.text for cell in table.rows[0]][1:] == ["out of memory", "too large"]


def test_sweeps_that_cannot_tell_are_counted_apart_from_those_that_can(tmp_path: Path) -> None:
    records = [record(1e-3 * batch, batch=batch, noise=0.0) for batch in (1, 2, 4, 8, 16)]
    (law,) = find_laws(records, [CEILINGS], margin=0.1)
    untold = msgspec.structs.replace(law, answer=msgspec.structs.replace(law.answer, verdict="cannot be told"))
    with open_run(tmp_path / "run", verb="latency", at=AT, settings={}, identity={}) as run:
        for each in (*records, CEILINGS):
            run.append(each)
        run.write_answer({"laws": (law, untold, untold), "conclusions": (), "prediction": ()}, headline="5 points")
    assert plain_text(build_page([read_run(tmp_path / "run")]).answer) == (
        "The time of a call is proportional to batch size in 1 of 1 sweep. "
        "2 more sweeps were too short or too noisy to tell."
    )


def test_latency_far_below_both_ceilings_is_said_in_the_words_of_the_terminal(tmp_path: Path) -> None:
    slow = [record(1e-2, batch=batch, kernel_seconds=1e-2, flops=1.1e10, noise=0.0) for batch in (1, 2, 4)]
    near = record(1e-2, batch=8, kernel_seconds=1e-2, flops=8e10, noise=0.0)
    with open_run(tmp_path / "run", verb="latency", at=AT, settings={}, identity={}) as run:
        for each in (*slow, near, CEILINGS):
            run.append(each)
        run.write_answer({"laws": (), "conclusions": (), "prediction": ()}, headline="4 points")
    page = build_page([read_run(tmp_path / "run")])
    (why,) = [figure for figure in page.figures if figure.question == "Why"]
    assert (why.value, why.note) == (
        "far below both ceilings",
        "3 of 4 points; 0.11 of the nearer one in the middle; 1 compute-bound",
    )
    (numbers,) = [section for section in page.sections if section.name == "answer"]
    table = next(
        block for block in numbers.blocks if isinstance(block, Table) and block.caption.startswith("Every point")
    )
    assert [row[-1].text for row in table.rows] == ["neither 0.11", "neither 0.11", "neither 0.11", "compute 0.80"]


def test_loader_names_the_pair_and_what_it_costs(pages: dict[str, Page]) -> None:
    page = pages["loader"]
    assert plain_text(page.answer) == "Batches of 8 with 1 loader process suit both models."
    assert figures_of(page) == {
        "Which pair": "8 × 1",
        "How sure": "90% chance",
        "How fast": "100 items/s",
        "Why": "decode-bound",
    }
    ((label, line),) = page.next_steps
    assert label == "Search with the batch size that computes fastest"
    assert line == "hound search photos --models timm:x --loader loader.json"
    (numbers,) = [section for section in page.sections if section.name == "answer"]
    captions = [block.caption.partition(".")[0] for block in numbers.blocks if isinstance(block, Table)]
    assert captions == ["Regret of pairs", "Models"]  # and no table of the fields of what is recommended


def test_train_gives_the_score_with_its_interval_the_bound_and_the_scaling(pages: dict[str, Page]) -> None:
    page = pages["train"]
    assert plain_text(page.answer) == (
        "timm:x reaches 90.0% accuracy on 40 test items after 1 epoch, the best of 2 runs."
    )
    figures = figures_of(page)
    assert list(figures) == ["How good, how sure", "How fast", "Why", "How it scales"]
    assert figures["Why"] == "data-bound"
    tied, time, checkpoint = (plain_text(each) for each in page.sentences)
    assert tied == "40 test items can hardly tell it from timm:x, 1 rank (80.0%)."
    assert time.startswith("Where the ")
    assert checkpoint.startswith("The fine-tuned network is in ")
    assert figures["How fast"] == "20 items/s"
    assert "76.3 – 97.2%" in page.figures[0].note  # Clopper-Pearson, 36 of 40


def test_profile_names_what_is_slow_and_what_running_less_saves(pages: dict[str, Page]) -> None:
    page = pages["profile"]
    assert plain_text(page.answer) == "The forward pass takes longest for timm:x."
    figures = figures_of(page)
    assert figures["What is slow"] == "forward"
    assert figures["If that were free"] == "4.3x faster"  # 3.91 s, of which 3 are not the forward pass's
    assert figures["What running less saves"] == "2.0x faster"


@pytest.mark.parametrize(
    ("jobs", "told", "counted"),
    [
        ((("timm:x", "full", "photos", "cpu"),), "timm:x", "1 model"),
        # texts have models of their own
        ((("timm:x", "full", "photos", "cpu"), ("hf:y", "full", "mails", "cpu")), "both models", "2 models"),
        (
            tuple((model, "full", "photos", device) for model in ("timm:x", "timm:z") for device in ("cpu", "cuda:0")),
            "4 of 4 models and places, 2 places each",
            "4 jobs",
        ),
        ((("timm:x", "last 50%", "photos", "cpu"), ("timm:x", "last 3", "photos", "cpu")), "2 of 2 jobs", "2 jobs"),
    ],
)
def test_profile_counts_models_where_it_says_models(
    tmp_path: Path, jobs: tuple[tuple[str, str, str, str], ...], told: str, counted: str
) -> None:
    path = write_verb_runs(tmp_path)["profile"]
    answer = msgspec.json.decode((path / "answer.json").read_bytes())
    first, names = answer["answer"]["bottlenecks"][0], ("model", "configuration", "data", "device")
    answer["answer"]["bottlenecks"] = [{**first, **dict(zip(names, job, strict=True))} for job in jobs]
    (path / "answer.json").write_bytes(msgspec.json.encode(answer))
    assert plain_text(build_page([read_run(path)]).answer) == f"The forward pass takes longest for {told}."
    assert _headline(msgspec.convert(answer["answer"], ProfileFindings)).endswith(f" of {counted}")


def test_a_profile_of_models_with_batches_of_their_own_says_from_how_many_items_to_how_many(tmp_path: Path) -> None:
    run = read_run(write_verb_runs(tmp_path)["profile"])
    assert run.answer is not None
    own = run.of(ConfigurationProfiled)
    others = [msgspec.structs.replace(each, model="timm:y", batch=8, num_items=80) for each in own]
    charts = profile_charts([*own, *others], msgspec.json.decode(run.answer, type=ProfileFindings))
    assert charts[0].title == "Where the time goes: photos on cpu, 40 to 80 items in batches of 4 to 8"
    (crossing,) = [chart for chart in charts if chart.name.startswith("profile_crossover")]
    assert "Beyond 40 to 80 items, dashed" in crossing.caption
    findings = msgspec.json.decode(run.answer, type=ProfileFindings)
    for moves, said in ((findings.moves, "depends on"), ((), "is the same whatever")):
        charts = profile_charts(own, msgspec.structs.replace(findings, moves=moves))
        (crossing,) = [chart for chart in charts if chart.name.startswith("profile_crossover")]
        assert crossing.title == f"What takes longest {said} the number of items: photos on cpu"
    assert (
        "40 items in batches of 4"
        in profile_charts(own, msgspec.json.decode(run.answer, type=ProfileFindings))[0].title
    )


def test_breakeven_counts_models_for_every_scenario(pages: dict[str, Page]) -> None:
    page = pages["breakeven"]
    # ten epochs of 1 s against 0.5 s a model
    assert plain_text(page.answer).startswith("Above 20 models in S1 and ")
    assert plain_text(page.answer).endswith(" in S2, searching takes longer than the training it is for.")
    assert list(figures_of(page)) == [
        *("S1, one after the other", "S1, all together", "S2, one after the other", "S2, all together"),
    ]
    assert plain_text(page.sentences[0]).startswith("S1: ")
    (numbers,) = [section for section in page.sections if section.name == "answer"]
    cells = [cell.text for block in numbers.blocks if isinstance(block, Table) for row in block.rows for cell in row]
    assert not any(text == "None" or "hyper-parameters do not matter" in text for text in cells)


def test_every_page_has_the_charts_of_its_verb_before_its_tables(pages: dict[str, Page]) -> None:
    for verb, page in pages.items():
        assert page.sections[0].name == "charts", verb
        assert {chart.name.partition("_")[0] for chart in page.charts} == {verb}
        assert len(page.figures) == 4
        assert page.title.endswith(f"hound {verb}")
        render_page(page, sources="a test")


def test_a_page_shows_the_newest_of_what_was_measured_by_several_starts(tmp_path: Path) -> None:
    """Before the records of the finished start lie those of one that failed, was killed, or had other weights."""
    for verb, path in write_verb_runs(tmp_path).items():
        run = read_run(path)
        stale = [*_outdated(run.records)]
        with open_run(tmp_path / f"{verb}-again", verb=verb, at=run.at, settings=run.settings, identity={}) as again:
            for each in (*stale, *run.records):
                again.append(each)
        (again.path / "answer.json").write_bytes((path / "answer.json").read_bytes())
        assert stale or verb in ("loader", "breakeven")
        clean, mixed = (build_page([read_run(each)]) for each in (path, again.path))
        assert mixed.figures == clean.figures
        assert [chart.data for chart in mixed.charts] == [chart.data for chart in clean.charts], verb


def _outdated(records: Iterable[Record]) -> Iterator[Record]:
    for each in records:
        if isinstance(each, LatencyMeasured):
            yield LatencyFailed(point=each.point, why="crashed", tried=True, message="it was another day")
        elif isinstance(each, RankTrained | ConfigurationProfiled):
            yield msgspec.structs.replace(each, wall_seconds=1000.0, num_items=1, phases=())


def test_a_training_whose_last_start_had_no_steps_left_has_no_speed_that_is_made_up(tmp_path: Path) -> None:
    run = read_run(write_verb_runs(tmp_path)["train"])
    with open_run(tmp_path / "killed", verb="train", at=run.at, settings=run.settings, identity={}) as killed:
        for each in run.records:
            if isinstance(each, RankTrained):
                phases = tuple(msgspec.structs.replace(phase, seconds=()) for phase in each.phases)
                each = msgspec.structs.replace(each, num_steps=0, num_items=0, phases=phases)
            killed.append(each)
    (killed.path / "answer.json").write_bytes((run.path / "answer.json").read_bytes())
    page = build_page([read_run(killed.path)])
    assert figures_of(page)["How fast"] == "unknown"
    assert "train_steps" not in {chart.name for chart in page.charts}
    assert "common" not in {section.name for section in build_page([run, read_run(killed.path)]).sections}
    render_page(page, sources="a test")


@pytest.mark.parametrize(("guess", "is_told"), [(0.75, False), (0.77, True), (None, False)])
def test_a_training_that_guessing_cannot_be_told_from_says_so(
    tmp_path: Path, guess: float | None, is_told: bool
) -> None:
    """36 of 40 are at least 76.3 %; runs of earlier versions did not write down what guessing would reach."""
    path = write_verb_runs(tmp_path)["train"]
    answer = msgspec.json.decode((path / "answer.json").read_bytes())
    answer["answer"]["guess"] = guess
    (path / "answer.json").write_bytes(msgspec.json.encode(answer))
    told = [plain_text(each) for each in build_page([read_run(path)]).sentences]
    assert ("Guessing by how often each answer comes cannot be told from that (77.0%)." in told) is is_told


def test_a_run_that_found_nothing_falls_back_to_its_headline(tmp_path: Path) -> None:
    path = write_verb_runs(tmp_path)["latency"]
    (path / "records.jsonl").write_bytes(b"")
    page = build_page([read_run(path)])
    assert plain_text(page.answer) == "Latency has found something."
    assert page.figures == ()


def test_break_even_of_models_that_differ_is_a_range_and_no_middle_of_it(tmp_path: Path) -> None:
    path = write_verb_runs(tmp_path)["breakeven"]
    answer = msgspec.json.decode((path / "answer.json").read_bytes())
    counts = answer["answer"]["counts"]
    counts += [{**each, "model": "timm:large", "num_models": 3 * each["num_models"]} for each in counts]
    (path / "answer.json").write_bytes(msgspec.json.encode(answer))
    page = build_page([read_run(path)])
    assert plain_text(page.answer) == (
        "Above 20 to 60 models in S1 and 110 to 330 models in S2, depending on the model trained, searching takes longer than "
        "the training it is for."
    )
    assert page.figures[0].value == "20 to 60 models"


def test_an_unfinished_run_says_what_it_has_and_draws_what_it_can(tmp_path: Path) -> None:
    drawn = {}
    for verb, path in write_verb_runs(tmp_path).items():
        (path / "answer.json").unlink()
        page = build_page([read_run(path)])
        said = plain_text(page.sentences[0])
        assert said.startswith("Measured so far: ")
        assert said.endswith("Going on keeps all of it.")
        drawn[verb] = bool(page.charts)
        render_page(page, sources="a test")
    assert drawn == {"latency": True, "loader": False, "train": True, "profile": True, "breakeven": False}


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Path]]:
    return [write_verb_runs(tmp_path_factory.mktemp(name)) for name in ("first", "second")]


@pytest.mark.parametrize("verb", ["latency", "train", "profile", "loader", "breakeven"])
def test_runs_of_one_verb_are_compared_by_figures_and_by_what_they_have_in_common(
    twice: list[dict[str, Path]], verb: str
) -> None:
    runs = [read_run(paths[verb]) for paths in twice]
    page = build_page(runs)
    figures = next(block for block in page.sections[0].blocks if block.caption == "The figures of each run")
    assert isinstance(figures, Table)
    assert [column.name for column in figures.columns[1:]] == [each.question for each in build_page(runs[:1]).figures]
    common = [chart for section in page.sections if section.name == "common" for chart in section.blocks]
    assert bool(common) == (verb in ("latency", "train", "profile"))
    if verb in ("latency", "train"):
        assert all(row["ratio"] == pytest.approx(1) for row in common[0].data)
    if verb == "profile":
        assert {row["run"] for row in common[0].data} == {f"profile ({place}): cpu" for place in (1, 2)}
    render_page(page, sources="a test")


def test_of_many_models_in_common_the_chart_says_how_many_it_draws(tmp_path: Path) -> None:
    paths = []
    for name in ("first", "second"):
        with open_run(tmp_path / name, verb="latency", at=AT, settings={"models": ["tv:*"]}, identity={}) as run:
            for place in range(30):
                run.append(record(1e-3, model=f"tv:m{place}", batch=1))
        paths.append(run.path)
    page = build_page([read_run(path) for path in paths])
    (chart,) = [chart for chart in page.charts if chart.name == "compare_times"]
    assert len({row["model"] for row in chart.data}) == 24
    assert chart.caption.endswith("Right of 1 is faster. Of 30 models the first 24 are drawn.")


def test_a_run_that_is_twice_as_fast_is_said_to_be(tmp_path: Path) -> None:
    path = write_verb_runs(tmp_path)["latency"]
    run = read_run(path)
    with open_run(tmp_path / "quick", verb="latency", at=run.at, settings=run.settings, identity={}) as quick:
        for each in run.records:
            if isinstance(each, LatencyMeasured):
                each = msgspec.structs.replace(each, seconds=tuple(one / 2 for one in each.seconds))
            quick.append(each)
    page = build_page([run, read_run(tmp_path / "quick")])
    chart = next(chart for chart in page.charts if chart.name == "compare_times")
    assert {row["run"] for row in chart.data} == {"quick"}
    assert all(row["ratio"] == pytest.approx(2) == row["low"] for row in chart.data)
