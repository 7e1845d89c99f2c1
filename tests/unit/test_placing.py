"""Which worker runs what: nothing is lost, neighbours stay together, nobody waits long for the last."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelhound.errors import RequestError
from modelhound.plan import Chain, Costs, Deal, Parcel, Placement, Segment, make_plan, place_chains

COSTS = Costs(
    flops_per_second=1.0,
    weight_bytes_per_second=1e18,
    spill_bytes_per_second=0.0,
    decode_seconds_per_item=0.0,
    score_seconds=0.0,
    launch_seconds=0.0,
    batch_items=1,
)


def chain(model: str, prints: str, *, input: str = "224", seconds: float = 1.0) -> Chain:
    """A model whose segments are single letters, each of `seconds` for one item."""
    segments = tuple(
        Segment(
            fingerprint=each, flops_per_item=seconds, output_bytes_per_item=1, weight_bytes=1, peak_bytes_per_item=1
        )
        for each in prints
    )
    return Chain(model=model, input=input, input_bytes_per_item=1, segments=segments)


def place(chains: Sequence[Chain], workers: int | Sequence[float], costs: Costs = COSTS) -> Placement:
    speeds = [1.0] * workers if isinstance(workers, int) else workers
    return place_chains(chains, num_items=1, costs=costs, speeds=speeds)


def models_of(placement: Placement) -> list[list[str]]:
    return [sorted(model for parcel in share for model in parcel.models) for share in placement.shares]


def test_models_that_share_a_prefix_go_to_the_same_worker() -> None:
    chains = [chain("a1", "PQRSx"), chain("b1", "TUVWx"), chain("a2", "PQRSy"), chain("b2", "TUVWy")]
    placement = place(chains, 2)
    assert models_of(placement) == [["a1", "a2"], ["b1", "b2"]]
    assert (placement.seconds, placement.least_seconds) == (6.0, 6.0)


def test_one_worker_runs_every_shared_segment_once() -> None:
    placement = place([chain("a", "PQx"), chain("b", "PQy"), chain("c", "PQ")], 1)
    assert placement.seconds == placement.least_seconds == 4.0


def test_a_tree_that_is_cut_runs_its_prefix_on_both_sides() -> None:
    placement = place([chain(name, f"PP{name * 10}") for name in "abcd"], 2)
    assert models_of(placement) == [["a", "b"], ["c", "d"]]
    assert (placement.seconds, placement.least_seconds) == (22.0, 21.0)


def test_a_fast_worker_gets_more() -> None:
    placement = place([chain(f"m{number:02}", chr(65 + number)) for number in range(20)], [3.0, 1.0])
    assert [len(share) for share in models_of(placement)] == [15, 5]


def test_the_same_network_under_another_name_costs_nothing() -> None:
    assert place([chain("a", "PQ"), chain("b", "PQ"), chain("c", "PQ")], 1).seconds == 2.0


def test_every_model_pays_for_its_batches_and_its_scores_and_another_name_for_neither() -> None:
    costs = replace(COSTS, launch_seconds=0.5, score_seconds=2.0, batch_items=4)
    for prints, seconds in (("PQx", 33.5 + 13.5), ("PQ", 33.5 + 3.5), ("PQy", 33.5), ("R", 33.5 + 13.5)):
        # 10 items of three segments in three batches, and what the second model has beyond the first
        placement = place_chains([chain("a", "PQy"), chain("b", prints)], num_items=10, costs=costs, speeds=[1.0])
        assert placement.seconds == pytest.approx(seconds), prints
    quick = place_chains([chain("a", "PQ", seconds=0.25)], num_items=10, costs=costs, speeds=[2.0])
    assert quick.seconds == pytest.approx((10 * 0.5 + 3.5) / 2)


def test_weights_are_read_while_the_model_before_runs_and_only_the_first_ones_are_waited_for() -> None:
    costs = replace(COSTS, weight_bytes_per_second=0.1)  # ten seconds for each segment, which runs for one
    alone = place_chains([chain("a", "PQ")], num_items=1, costs=costs, speeds=[1.0])
    assert alone.seconds == 20.0 + 2.0
    both = place_chains([chain("a", "PQ"), chain("b", "PR")], num_items=1, costs=costs, speeds=[1.0])
    assert both.seconds == 20.0 + 10.0 + 1.0


def test_what_is_left_of_a_parcel_without_details_takes_its_share_of_the_time() -> None:
    whole = Parcel(models=("a", "b", "c", "d"), seconds=10.0)
    assert whole.without(lambda model: model == "b") == Parcel(models=("a", "c", "d"), seconds=7.5)
    assert whole.without(lambda model: True) == Parcel(models=(), seconds=0.0)


def test_more_workers_than_models_leave_some_idle() -> None:
    placement = place([chain("a", "PPP"), chain("b", "QQQ")], 4)
    assert sorted(map(len, models_of(placement))) == [0, 0, 1, 1]
    assert placement.seconds == placement.least_seconds == 3.0


def test_every_worker_decodes_once_and_makes_the_inputs_that_its_models_want() -> None:
    chains = [chain("a", "PPPP", input="224"), chain("b", "QQQQ", input="384")]
    costs = replace(COSTS, decode_seconds_per_item=10.0, form_seconds_per_item={"224": 1.0, "384": 2.0})
    assert place(chains, 1, costs).seconds == 10.0 + 1.0 + 2.0 + 8.0
    parted = place(chains, 2, costs)
    assert (parted.seconds, parted.num_inputs) == (10.0 + 2.0 + 4.0, (1, 1))


def test_nothing_to_place_or_nowhere_to_place_it_is_refused() -> None:
    with pytest.raises(RequestError, match="cannot place 0 models on 2 workers"):
        place([], 2)
    with pytest.raises(RequestError, match=r"speed 0\.0"):
        place([chain("a", "P")], [1.0, 0.0])


@settings(max_examples=60, deadline=None)
@given(
    prints=st.lists(st.text("PQRS", min_size=1, max_size=6), min_size=1, max_size=40),
    speeds=st.lists(st.floats(0.5, 4.0), min_size=1, max_size=6),
)
def test_every_model_is_placed_once_and_predictions_add_up(prints: list[str], speeds: list[float]) -> None:
    chains = [chain(f"m{number}", each) for number, each in enumerate(prints)]
    placement = place(chains, speeds)
    placed = [model for share in placement.shares for parcel in share for model in parcel.models]
    assert sorted(placed) == sorted(each.model for each in chains)
    assert placement.seconds >= placement.least_seconds * (1 - 1e-9)
    by_name = {each.model: each for each in chains}
    for share in placement.shares:
        for parcel in share:
            plan = make_plan([by_name[model] for model in parcel.models], num_items=1, costs=COSTS)
            run = sum(segment.flops_per_item for step in plan.steps for segment in step.segments)
            assert parcel.seconds == pytest.approx(run)


def parcel(name: str, seconds: float = 10.0) -> Parcel:
    return Parcel(models=(name,), seconds=seconds)


def test_a_worker_does_its_own_share_in_order_and_then_helps_the_slowest() -> None:
    deal = Deal([[parcel("a"), parcel("b")], [parcel("c"), parcel("d"), parcel("e")]], [1.0, 1.0])
    assert deal.take(0, 0.0) == parcel("a")
    assert deal.take(1, 0.0) == parcel("c")
    deal.finish(0, 1.0)
    assert deal.take(0, 1.0) == parcel("b")
    deal.finish(0, 2.0)
    assert deal.take(0, 2.0) == parcel("e")  # from the end: the other goes on at the front
    assert deal.num_moved == 1


def test_what_a_lost_worker_had_is_done_by_others() -> None:
    deal = Deal([[parcel("a"), parcel("b")], [parcel("c")]], [1.0, 1.0])
    deal.take(0, 0.0)
    deal.take(1, 0.0)
    deal.lose(0)
    deal.finish(1, 5.0)
    taken = []
    while (now := deal.take(1, 6.0)) is not None:
        taken.append(now)
        deal.finish(1, 7.0)
    assert taken == [parcel("a"), parcel("b")]
    assert deal.is_done


def test_a_new_worker_takes_what_was_given_back() -> None:
    deal = Deal([[parcel("a")]], [1.0])
    deal.take(0, 0.0)
    deal.lose(0)
    assert deal.take(7, 1.0) == parcel("a")
    deal.finish(7, 2.0)
    assert deal.is_done


def test_a_worker_that_has_stopped_is_overtaken_by_an_idle_one_after_a_while() -> None:
    deal = Deal([[parcel("a")], [parcel("b")]], [1.0, 1.0])
    deal.take(0, 0.0)
    deal.take(1, 0.0)
    deal.finish(1, 10.0)
    assert deal.take(1, 29.0) is None  # three times what it should take is 30 s
    assert deal.take(1, 31.0) == parcel("a")
    assert deal.num_copied == 1
    assert deal.finish(1, 41.0) == [0]
    assert deal.is_done


def test_a_copy_is_made_once_and_outlives_the_first() -> None:
    deal = Deal([[parcel("a")], [], []], [1.0, 1.0, 1.0])
    deal.take(0, 0.0)
    assert deal.take(1, 100.0) == parcel("a")
    assert deal.take(2, 100.0) is None
    deal.lose(0)
    assert deal.take(2, 101.0) is None  # the copy is still on its way
    deal.finish(1, 102.0)
    assert deal.is_done


def long_parcel(num_models: int = 10, *, shared: float = 2.0, own: float = 1.0) -> Parcel:
    """Models that all share the same beginning."""
    return Parcel(
        models=tuple(f"m{number}" for number in range(num_models)),
        seconds=shared + own * num_models,
        alone=(shared + own,) * num_models,
        new=(shared + own, *[own] * (num_models - 1)),
    )


def test_a_parcel_is_cut_where_its_end_takes_what_was_asked_for() -> None:
    parts = long_parcel().cut(5.0)
    assert parts is not None
    assert [each.models for each in parts] == [tuple(f"m{n}" for n in range(7)), ("m7", "m8", "m9")]
    assert [each.seconds for each in parts] == [9.0, 5.0]  # what they share is run twice


def test_a_parcel_is_cut_rather_where_less_is_shared() -> None:
    new = [3.0, *[1.0] * 9]
    new[6] = 3.0  # shares nothing with its neighbour
    whole = Parcel(models=long_parcel().models, seconds=14.0, alone=(3.0,) * 10, new=tuple(new))
    parts = whole.cut(5.0)
    assert parts is not None
    assert parts[1].models[0] == "m6"
    assert sum(each.seconds for each in parts) == whole.seconds


def test_a_parcel_that_is_nearly_all_shared_is_not_cut() -> None:
    assert long_parcel(shared=100.0).cut(50.0) is None
    assert parcel("a").cut(5.0) is None


def test_what_is_left_of_a_parcel_runs_again_what_it_shared_with_what_is_done() -> None:
    left = long_parcel().without({"m0", "m1", "m5"}.__contains__)
    assert left.models == ("m2", "m3", "m4", "m6", "m7", "m8", "m9")
    assert left.seconds == 3 + 1 + 1 + 3 + 1 + 1 + 1


def test_an_idle_worker_takes_so_much_that_both_end_together() -> None:
    deal = Deal([[parcel("a")], [parcel("b"), long_parcel(20)]], [1.0, 1.0])
    deal.take(0, 0.0)
    deal.take(1, 0.0)
    deal.finish(0, 5.0)
    moved = deal.take(0, 5.0)
    assert moved is not None
    assert moved.seconds == pytest.approx((5 + 22) / 2, abs=1.0)  # the other has 5 s of its first and 22 s to come
    deal.finish(1, 10.0)
    kept = deal.take(1, 10.0)
    assert kept is not None
    assert kept.models + moved.models == long_parcel(20).models
    deal.finish(0, 20.0)
    deal.finish(1, 20.0)
    assert deal.is_done


def test_what_waits_for_a_worker_that_has_not_come_back_is_done_by_others() -> None:
    deal = Deal([[parcel("a"), parcel("b")], [parcel("c")]], [1.0, 1.0])  # the first takes nothing
    deal.take(1, 0.0)
    deal.finish(1, 10.0)
    taken = [deal.take(1, 10.0), deal.finish(1, 20.0), deal.take(1, 20.0)]
    assert [taken[0], taken[2]] == [parcel("b"), parcel("a")]


def test_of_a_lost_worker_only_what_it_had_not_told_is_done_again() -> None:
    told: set[str] = set()
    deal = Deal([[long_parcel(3)], [parcel("b")]], [1.0, 1.0], is_told=told.__contains__)
    deal.take(0, 0.0)
    deal.take(1, 0.0)
    told |= {"m0", "m1"}
    deal.lose(0)
    deal.finish(1, 10.0)
    again = deal.take(1, 10.0)
    assert again is not None
    assert again.models == ("m2",)
    deal.finish(1, 11.0)
    assert deal.is_done


def test_a_lost_worker_that_had_told_all_leaves_nothing_to_do() -> None:
    deal = Deal([[parcel("a")]], [1.0], is_told={"a"}.__contains__)
    deal.take(0, 0.0)
    deal.lose(0)
    assert deal.is_done
