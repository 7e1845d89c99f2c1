"""How sure a winner is, and the items as it sees them: known answers."""

import numpy
import pytest

from modelhound.analysis.certainty import judge_winner, pareto_front, scorer_agreement
from modelhound.analysis.item_map import hardest_items, map_items
from modelhound.analysis.ranking import rank_models
from modelhound.records import ModelMeasured, pack_items


def measured(model: str, items: list[float], num_parameters: int = 10, **scores: float) -> ModelMeasured:
    return ModelMeasured(
        model=model,
        num_parameters=num_parameters,
        num_features=1,
        num_items=len(items),
        scores={"ridge": sum(items) / len(items), **scores},
        item_scores={"ridge": pack_items(numpy.array(items))},
        phases=(),
        wall_seconds=1.0,
        peak_memory_bytes=1,
    )


def test_a_winner_that_is_right_where_others_are_wrong_is_certain() -> None:
    records = [measured("good", [1.0] * 80 + [0.0] * 20), measured("bad", [1.0] * 20 + [0.0] * 80)]
    certainty = judge_winner(rank_models(records, rests_on=["ridge"], seed=0), records)
    assert certainty is not None
    assert certainty.chance_best == 1.0
    assert certainty.most_lost == 0.0
    assert certainty.next_model == "bad"
    assert certainty.lead == pytest.approx(0.6)
    low, high = certainty.lead_interval
    assert 0.45 < low < 0.6 < high < 0.75


def test_two_equal_models_have_an_even_chance() -> None:
    items = [1.0, 0.0] * 50
    records = [measured("one", items), measured("other", items)]
    certainty = judge_winner(rank_models(records, rests_on=["ridge"], seed=0), records)
    assert certainty is not None
    assert certainty.chance_best == pytest.approx(0.5)
    assert certainty.next_model is None


def test_without_models_there_is_no_certainty() -> None:
    assert judge_winner(rank_models([], rests_on=["ridge"], seed=0), []) is None


def test_scorers_that_order_alike_agree_and_reversed_ones_disagree() -> None:
    records = [
        measured(f"m{place}", [1.0] * place + [0.0] * (10 - place), num_parameters=100 - place, logme=-float(place))
        for place in range(1, 6)
    ]
    ranking = rank_models(records, rests_on=["ridge"], seed=0)
    found = {(each.first, each.second): each.kendall_tau for each in scorer_agreement(ranking.models)}
    assert found["ridge", "ridge"] == pytest.approx(1)
    assert found["ridge", "logme"] == pytest.approx(-1)
    assert found["size alone", "logme"] == pytest.approx(1)


def test_the_pareto_front_is_cheapest_first_and_holds_no_beaten_point() -> None:
    assert pareto_front([3, 1, 2, 1, 4], [0.9, 0.5, 0.4, 0.6, 0.9]) == (3, 0)
    assert pareto_front([], []) == ()


def test_a_map_keeps_groups_together_and_apart() -> None:
    generator = numpy.random.default_rng(0)
    centres = 8 * generator.normal(size=(4, 20))
    groups = numpy.arange(200) % 4
    points = map_items(centres[groups] + generator.normal(size=(200, 20)))
    assert points.shape == (200, 2)
    assert numpy.isfinite(points).all()
    distances = numpy.linalg.norm(points[:, None] - points[None], axis=-1) + 9 * numpy.eye(200)
    assert (groups[distances.argmin(axis=1)] == groups).mean() > 0.99


def test_the_same_features_give_the_same_map_whatever_their_sign() -> None:
    features = numpy.random.default_rng(1).normal(size=(60, 8))
    numpy.testing.assert_array_equal(map_items(features), map_items(features))


@pytest.mark.parametrize(
    "features", [numpy.zeros((30, 5)), numpy.ones((3, 2)), numpy.full((20, 4), numpy.nan), numpy.ones((1, 1))]
)
def test_features_that_say_nothing_still_give_a_map(features: numpy.ndarray) -> None:
    points = map_items(features)
    assert points.shape == (len(features), 2)
    assert numpy.isfinite(points).all()


def test_the_hardest_items_are_missed_by_this_model_and_then_by_most_others() -> None:
    own = numpy.array([1.0, 0.0, 0.0, 1.0, numpy.nan])
    others = [own, numpy.array([0.0, 1.0, 0.0, 0.0, numpy.nan])]
    hardness, order = hardest_items(own, others, num_hardest=3)
    assert order.tolist() == [2, 1, 0]
    assert hardness[2] > hardness[1] > hardness[0]
    assert hardness[4] == 0
