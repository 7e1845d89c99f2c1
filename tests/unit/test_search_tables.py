"""The tables of a search have the same names and numbers in a terminal and on a page."""

import msgspec
import pytest

from modelhound.analysis.search_tables import finals_columns, ranking_columns, short_chance_text, time_text
from modelhound.analysis.search_wording import best_sentence, control_sentence, tau_text, tie_sentence, time_sentence
from modelhound.analysis.wording import metric_interval_text, metric_text
from modelhound.records import Finalist, FinalsAnswer, RankedModel, Ranking


def ranked(model: str, rank: int = 1, *, tied: bool = False, score: float = 0.9, size: int = 1_000_000) -> RankedModel:
    return RankedModel(
        rank=rank,
        model=model,
        score=score,
        interval=(score - 0.05, score + 0.05),
        scores={"ridge": score, "knn": 0.8, "logme": 0.25},
        num_parameters=size,
        seconds=0.02,
        tied=tied,
        size_rank=3,
    )


def ranking(*rows: RankedModel) -> Ranking:
    return Ranking(
        rests_on=("ridge",), confidence=0.95, num_items=1200, models=rows, by_size=(), size_agreement=None, finals=None
    )


TIED = ranking(ranked("zoo:a", tied=True), ranked("zoo:b", tied=True, size=5000), ranked("zoo:c", 3, score=0.5))


def test_a_ranking_is_told_in_columns_with_what_they_are_sorted_by() -> None:
    columns = ranking_columns(TIED)
    assert list(columns) == ["rank", "model", "score", "interval", "knn", "logme", "params", "time", "by size"]
    assert columns["rank"].texts == ("1=", "1=", "3 ")
    assert columns["interval"].texts[0] == "85.0 – 95.0%"
    assert columns["params"].values == (1_000_000.0, 5000.0, 1_000_000.0)
    assert columns["knn"].texts[0] == "80.0%"
    assert columns["logme"].texts[0] == "0.250"
    assert [len(each.texts) for each in ranking_columns(TIED, top=2).values()] == [2] * 9


def test_a_scorer_that_differs_from_the_score_has_a_column() -> None:
    mean = ranking(msgspec.structs.replace(ranked("zoo:a"), score=0.85))
    assert "ridge" in ranking_columns(mean)


def test_finals_are_told_in_columns_with_dashes_for_what_is_not_known() -> None:
    row = Finalist(
        place=1,
        model="zoo:a",
        state="failed",
        score=None,
        num_items=0,
        num_epochs=0,
        rate=None,
        chance=0.999,
        predicted=None,
        interval=None,
        seconds=300.0,
    )
    finals = FinalsAnswer(
        verdict="won",
        ended="certain",
        winner="zoo:a",
        finalists=(row, msgspec.structs.replace(row, model="zoo:b", rate=0.0027, interval=(0.8, 0.9), chance=0.3)),
        metric="accuracy",
        confidence=0.9,
        full_epochs=20,
        budget_seconds=60.0,
        spent_seconds=30.0,
        full_seconds=400.0,
    )
    columns = finals_columns(finals)
    assert list(columns) == [
        *("place", "model", "chance", "so far", "epochs", "after 20 epochs", "90% interval", "rate", "time", "raced"),
    ]
    assert columns["place"].texts == ("1=", "1=")
    assert columns["chance"].texts == (">99%", "30%")
    assert columns["rate"].texts == ("–", "0.0027")
    assert columns["90% interval"].values == (None, 0.8)
    assert columns["time"].texts[0].replace("\N{NO-BREAK SPACE}", " ") == "5 min 0 s"


@pytest.mark.parametrize(("seconds", "text"), [(0.0, "0.0 s"), (0.01, "<0.1 s"), (0.06, "0.1 s"), (119.94, "119.9 s")])
def test_a_time_in_a_column_has_one_unit(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


@pytest.mark.parametrize(("chance", "text"), [(0.0, "0%"), (0.991, ">99%"), (1.0, ">99%"), (0.62, "62%")])
def test_no_chance_is_called_certain(chance: float, text: str) -> None:
    assert short_chance_text(chance) == text


def test_the_best_is_the_best_only_where_there_are_others() -> None:
    strong, rest = best_sentence(TIED, "digits")
    assert strong + rest == (
        "zoo:a suits digits best: 90.0% (85.0 – 95.0%, 95% interval) of 1,200 items are recognised from its features."
    )
    assert best_sentence(ranking(ranked("zoo:a")), "digits")[1].startswith(
        " is the only model measured on digits: 90.0%"
    )
    outlasting = msgspec.structs.replace(ranking(ranked("zoo:a")), by_size=("zoo:a", "zoo:dropped"))
    assert best_sentence(outlasting, "digits")[1].startswith(" suits digits best: 90.0%")


def test_what_guessing_would_reach_is_told_where_the_best_is_close_to_it() -> None:
    close = msgspec.structs.replace(TIED, guess=0.84)
    assert best_sentence(close, "digits")[1].endswith(
        "recognised from its features; naming the most frequent class every time would reach 84.0%."
    )
    assert "every time" not in best_sentence(msgspec.structs.replace(TIED, guess=0.1), "digits")[1]
    beaten = msgspec.structs.replace(TIED, guess=0.89, is_guess_beaten=False)
    assert "".join(best_sentence(beaten, "digits")) == (
        "No model is clearly better than guessing on digits: zoo:a reaches 90.0% (85.0 – 95.0%, 95% interval), naming the most "
        "frequent class every time would reach 89.0%. Labels that are noise look like this; so do too few items."
    )
    assert tie_sentence(beaten) == ("", "", "")


def test_the_control_names_the_models_that_it_is_about() -> None:
    whole = msgspec.structs.replace(TIED, by_size=("zoo:c", "zoo:a", "zoo:b"), size_agreement=-0.5)
    assert control_sentence(whole).startswith(
        "Control: a list ordered by size alone agrees with this ranking of all 3 models by Kendall's tau = -0.50 (1"
    )
    raced = msgspec.structs.replace(whole, by_size=("zoo:c", "zoo:a", "zoo:b", "zoo:d", "zoo:e"))
    assert "of all 5 models, the 2 that left the race early behind the others, by Kendall's tau" in control_sentence(
        raced
    )
    assert control_sentence(msgspec.structs.replace(whole, size_agreement=None)) == ""


def test_the_smallest_of_those_that_share_rank_1_is_named() -> None:
    assert "".join(tie_sentence(TIED)).replace("\N{NO-BREAK SPACE}", " ") == (
        "2 models share rank 1: 1,200 items cannot tell them apart. The smallest of them is zoo:b (5.0 k parameters)."
    )
    alike = tie_sentence(ranking(ranked("zoo:a"), ranked("zoo:b")))
    assert "".join(alike).endswith("cannot tell them apart, and none of them is smaller than zoo:a.")
    assert tie_sentence(ranking(ranked("zoo:a"), ranked("zoo:b", 2))) == ("", "", "")


def test_the_time_is_told_from_most_to_least_and_what_took_none_is_not() -> None:
    told = time_sentence({"score": 1.0, "forward": 8.9, "read weights": 0.01, "build model": 0.09}, "cpu")
    assert told == "Where the 10.0 s of model time went (cpu): forward 89%, score 10%, build model 1%."
    assert "remembered" in time_sentence({"score": 0.5}, "cpu")
    assert (
        time_sentence({"forward": 1.0}, "cpu", "bf16")
        == "Where the 1.0 s of model time went (cpu, bf16): forward 100%."
    )
    assert time_sentence({"forward": 1.0}, "cpu", "fp32") == "Where the 1.0 s of model time went (cpu): forward 100%."


def test_an_agreement_of_nothing_has_no_sign_below_zero() -> None:
    assert [tau_text(tau) for tau in (-0.001, 0.0, -0.11, 1.0)] == ["+0.00", "+0.00", "-0.11", "+1.00"]


def test_an_r2_of_next_to_nothing_has_no_minus_before_its_nought() -> None:
    """Naming the mean every time: what is left over in the last digit is below zero as often as above."""
    assert metric_text("R2", -2e-5) == metric_text("R2", 2e-5) == "0.000"
    assert metric_interval_text("R2", (-0.0004, 0.0126)) == "0.000 – 0.013"
    assert metric_interval_text("R2", (-0.0126, -0.0004)) == "-0.013 – 0.000"
