"""Finals in words and on the page: who won, ties, noise; no name where nothing can be told."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from modelhound.analysis.finals_wording import (
    basis_sentence,
    chance_text,
    cost_sentence,
    no_winner_text,
    verdict_sentence,
)
from modelhound.records import Finalist, FinalsAnswer, Ranking
from modelhound.report.charts import Chart
from modelhound.report.finals_section import finals_figures, finals_section, finals_sentence
from modelhound.report.parts import Table, plain_text
from modelhound.report.search_answer import key_figures, supporting_sentences
from modelhound.report.search_drawing import LOST, WON
from modelhound.report.search_view import view_search
from modelhound.store import read_run
from report_runs import write_search

SIZES = {"zoo:first": 2_000_000, "zoo:second": 1_000_000, "zoo:third": 500}


def finalist(model: str, place: int = 1, **changes: Any) -> Finalist:
    row = Finalist(
        place=place,
        model=model,
        state="in",
        score=0.8,
        num_items=300,
        num_epochs=6,
        rate=3e-4,
        chance=0.5,
        predicted=0.88,
        interval=(0.84, 0.91),
        seconds=12.0,
    )
    return msgspec.structs.replace(row, **changes)


def answer(**changes: Any) -> FinalsAnswer:
    finals = FinalsAnswer(
        verdict="won",
        ended="certain",
        winner="zoo:first",
        finalists=(finalist("zoo:first", chance=0.999), finalist("zoo:second", 2, chance=0.0, state="dropped")),
        metric="accuracy",
        confidence=0.9,
        full_epochs=20,
        budget_seconds=60.0,
        spent_seconds=30.0,
        full_seconds=400.0,
    )
    return msgspec.structs.replace(finals, **changes)


def ranking(finals: FinalsAnswer | None) -> Ranking:
    return Ranking(
        rests_on=("ridge",), confidence=0.95, num_items=300, models=(), by_size=(), size_agreement=None, finals=finals
    )


NOISE = answer(verdict="cannot tell", ended="noise", winner=None)
TIED = answer(
    verdict="tied",
    ended="budget",
    finalists=(finalist("zoo:first", chance=0.6), finalist("zoo:second", chance=0.4), finalist("zoo:third", 3)),
)


def test_without_a_winner_a_few_words_say_why() -> None:
    assert no_winner_text(NOISE) == "no finalist is better than guessing"
    assert no_winner_text(answer(verdict="failed", ended="failed", winner=None)) == "no finalist could be fine-tuned"


def test_a_winner_is_named_with_what_to_expect_and_what_that_rests_on() -> None:
    strong, rest = verdict_sentence(answer(), "digits", SIZES)
    assert strong == "zoo:first"
    assert rest == (
        " wins the finals on digits, the best with a chance of more than 99%: 88.0% (84.0 – 91.0%, 90% interval) accuracy "
        "expected after full fine-tuning."
    )
    assert basis_sentence(answer()) == "This rests on 6 of 20 epochs of fine-tuning, tested on 300 items."


def test_a_tie_names_the_smallest_of_those_tied() -> None:
    strong, rest = verdict_sentence(TIED, "digits", SIZES)
    assert strong == "Cannot tell 2 finalists apart"
    assert "The smallest of them is zoo:second" in rest


def test_one_that_is_ahead_alone_is_not_called_certain() -> None:
    strong, rest = verdict_sentence(msgspec.structs.replace(TIED, finalists=TIED.finalists[::2]), "digits", SIZES)
    assert strong == "zoo:first"
    assert "which is not certain" in rest


def test_noise_is_told_without_a_name() -> None:
    told = "".join(verdict_sentence(NOISE, "digits", SIZES)) + " ".join(
        f"{each.value} {each.note}" for each in finals_figures(NOISE)
    )
    assert told.startswith("Cannot tell")
    assert "zoo:" not in told


@pytest.mark.parametrize(
    ("finals", "why"),
    [(answer(), "when the winner was certain"), (TIED, "a larger --finals-budget"), (NOISE, "would take")],
)
def test_the_cost_stands_beside_what_it_saves(finals: FinalsAnswer, why: str) -> None:
    assert "7.5% of the" in cost_sentence(finals)
    assert why in cost_sentence(finals)


def test_the_page_lists_every_finalist() -> None:
    section = finals_section(ranking(TIED))
    assert section is not None
    chart, table = section.blocks
    assert isinstance(chart, Chart)
    assert isinstance(table, Table)
    assert [row["group"] for row in chart.data] == [WON, WON, LOST]
    assert next((row["score"], row["low"], row["high"], row["so_far"]) for row in chart.data) == (0.88, 0.84, 0.91, 0.8)
    assert [row[0].text for row in table.rows] == ["zoo:first", "zoo:second", "zoo:third"]
    assert [row[1].text for row in table.rows] == ["1=", "1=", "3"]
    assert len({len(row) for row in table.rows} | {len(table.columns)}) == 1
    assert plain_text(finals_sentence(TIED, "digits")) == (
        "Cannot tell 2 finalists apart on digits: zoo:first is ahead, with a chance of 60% to be the best."
    )


def test_a_finalist_that_failed_has_dashes() -> None:
    lost = finalist(
        "zoo:third", 3, state="failed", score=None, num_items=0, num_epochs=0, rate=None, predicted=None, interval=None
    )
    section = finals_section(ranking(answer(finalists=(finalist("zoo:first"), lost))))
    assert section is not None
    chart, table = section.blocks
    assert isinstance(chart, Chart)
    assert isinstance(table, Table)
    assert [row["model"] for row in chart.data] == ["zoo:first"]
    assert [cell.text for cell in table.rows[1]].count("–") == 4
    nobody = finals_section(ranking(answer(finalists=(lost,))))
    assert nobody is not None
    assert len(nobody.blocks) == 1


def test_a_search_without_finals_has_no_such_section() -> None:
    assert finals_section(ranking(None)) is None


def test_nobody_who_could_be_trained_is_told_as_such() -> None:
    lost = answer(verdict="failed", ended="failed", winner=None, finalists=())
    assert verdict_sentence(lost, "digits", {})[0] == "No finalist could be fine-tuned"
    assert basis_sentence(lost) == ""
    assert finals_figures(lost)[0].note == "no finalist could be fine-tuned"


@pytest.mark.parametrize(("chance", "text"), [(0.62, "62%"), (0.9999, "more than 99%"), (0.0, "0%")])
def test_a_chance_is_never_called_certain(chance: float, text: str) -> None:
    assert chance_text(chance) == text


def test_of_tied_finalists_of_one_size_page_and_terminal_name_the_same(tmp_path: Path) -> None:
    view = view_search(read_run(write_search(tmp_path / "run", ["zoo:second", "zoo:first"])))
    alike = tuple(msgspec.structs.replace(row, num_parameters=7) for row in view.ranking.models)
    view = replace(view, ranking=msgspec.structs.replace(view.ranking, models=alike, finals=TIED))
    _, told = verdict_sentence(TIED, "digits", {row.model: 7 for row in alike})
    assert "The smallest of them is zoo:first (7 parameters)." in told
    said = " ".join(plain_text(sentence) for sentence in supporting_sentences(view))
    assert "The smallest of the finalists that cannot be told apart is zoo:first (7 parameters)." in said


@pytest.mark.parametrize(
    ("chance", "why"),
    [(1.0, "no other reached it in any resample"), (0.5, "others may be as good, but in 95% of all resamples")],
)
def test_an_equal_of_the_best_is_not_said_to_stay_behind_it(tmp_path: Path, chance: float, why: str) -> None:
    view = view_search(read_run(write_search(tmp_path / "run", ["zoo:first", "zoo:second"])))
    assert view.certainty is not None
    sure = key_figures(replace(view, certainty=replace(view.certainty, chance_best=chance, most_lost=0.0)))[1]
    assert sure.question == "How sure"
    assert why in sure.note
