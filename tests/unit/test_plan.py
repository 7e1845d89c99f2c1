"""A plan runs every model exactly once, shares what is shared, and stays within its memory."""

import itertools
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

import pytest

from modelhound.errors import RequestError
from modelhound.plan import (
    Chain,
    Costs,
    ExplainedNode,
    Plan,
    Segment,
    Step,
    explain_plan,
    forecast_plan,
    halving_spares,
    make_plan,
    peak_bytes,
)

COSTS = Costs(
    flops_per_second=100.0,
    weight_bytes_per_second=10.0,
    spill_bytes_per_second=50.0,
    decode_seconds_per_item=0.0,
    score_seconds=0.0,
    launch_seconds=0.0,
    batch_items=2,
)


def segment(name: str, *, flops: float = 100.0, output: int = 1, weights: int = 10, peak: int = 1) -> Segment:
    return Segment(
        fingerprint=name,
        flops_per_item=flops,
        output_bytes_per_item=output,
        weight_bytes=weights,
        peak_bytes_per_item=peak,
    )


def chain(model: str, segments: str | Sequence[Segment], input: str = "32px") -> Chain:
    """A model from letters, one for each segment, or from segments."""
    made = tuple(segment(each) if isinstance(each, str) else each for each in segments)
    return Chain(model=model, input=input, input_bytes_per_item=3, segments=made)


def random_pool(seed: int, num_models: int = 12, depth: int = 6) -> list[Chain]:
    """Copies of copies with new ends; some have another input, are equal, are a part of another or go through a layer twice."""
    rng = random.Random(seed)
    sizes = random.Random(seed + 1)
    chains: list[Chain] = []
    for index in range(num_models):
        start: tuple[Segment, ...] = ()
        if chains and rng.random() < 0.9:
            start = rng.choice(chains).segments[: rng.randint(1, depth)]
        num_new = rng.randint(0 if start else 1, max(1, depth - len(start)))
        new = tuple(
            segment(
                f"{index}.{place}",
                flops=sizes.choice([10.0, 100.0, 1000.0]),
                output=sizes.randint(1, 40),
                weights=sizes.randint(0, 30),
                peak=sizes.randint(1, 40),
            )
            for place in range(num_new)
        )
        if new and sizes.random() < 0.2:  # a layer that is gone through twice
            new += new[:1]
        chains.append(chain(f"model-{index}", start + new, input=rng.choice(["32px", "32px", "48px"])))
    return chains


def budgets(chains: list[Chain], costs: Costs = COSTS, num_items: int = 20) -> Iterator[Plan]:
    """The unlimited plan, then plans with less and less memory until nothing fits."""
    plan = make_plan(chains, num_items=num_items, costs=costs)
    yield plan
    for share in (0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1):
        try:
            yield make_plan(
                chains, num_items=num_items, costs=replace(costs, memory_bytes=int(share * peak_bytes(plan)))
            )
        except RequestError:
            return


def composed(plan: Plan) -> dict[str, tuple[str, tuple[str, ...]]]:
    """What each model's features are made of: the input and all fingerprints, by following the sources."""
    outputs: list[tuple[str, ...]] = []
    models = {}
    for step in plan.steps:
        before = () if step.source is None else outputs[step.source]
        outputs.append(before + tuple(each.fingerprint for each in step.segments))
        for model in step.finishes:
            assert model not in models, "finished twice"
            models[model] = (step.input, outputs[-1])
    return models


def expected(chains: Sequence[Chain]) -> dict[str, tuple[str, tuple[str, ...]]]:
    return {each.model: (each.input, tuple(one.fingerprint for one in each.segments)) for each in chains}


def shape(plan: Plan) -> list[tuple[int | None, str, tuple[str, ...]]]:
    return [(each.source, "".join(one.fingerprint for one in each.segments), each.finishes) for each in plan.steps]


def test_a_shared_prefix_runs_once() -> None:
    plan = make_plan([chain("x", "abc"), chain("y", "abd")], num_items=10, costs=COSTS)
    assert shape(plan) == [(None, "ab", ()), (0, "c", ("x",)), (0, "d", ("y",))]
    assert [step.keep for step in plan.steps] == ["memory", "nothing", "nothing"]
    assert [step.frees_source for step in plan.steps] == [True, False, True]


def test_a_model_that_ends_where_another_goes_on_finishes_on_the_way() -> None:
    plan = make_plan([chain("long", "abc"), chain("short", "ab")], num_items=10, costs=COSTS)
    assert shape(plan) == [(None, "ab", ("short",)), (0, "c", ("long",))]


def test_the_same_network_under_two_names_runs_once() -> None:
    plan = make_plan([chain("y", "abc"), chain("x", "abc")], num_items=10, costs=COSTS)
    assert shape(plan) == [(None, "abc", ("x", "y"))]


def test_models_with_different_preprocessing_share_nothing() -> None:
    plan = make_plan([chain("x", "ab"), chain("y", "ab", input="48px")], num_items=10, costs=COSTS)
    assert [(step.source, step.input, step.finishes) for step in plan.steps] == [
        (None, "32px", ("x",)),
        (None, "48px", ("y",)),
    ]


@pytest.mark.parametrize("spill_rate", [0.0, 50.0, 1e9])
@pytest.mark.parametrize("seed", range(25))
def test_under_any_budget_every_model_is_its_own_chain_and_memory_is_kept(seed: int, spill_rate: float) -> None:
    chains = random_pool(seed)
    for plan in budgets(chains, replace(COSTS, spill_bytes_per_second=spill_rate)):
        assert composed(plan) == expected(chains)
        assert peak_bytes(plan) == peak_by_moments(plan) <= plan.costs.memory_bytes
        assert [item for chunk in plan.chunks for item in chunk] == list(range(20))
        assert len(plan.chunks) == plan.num_chunks
        check_lifetimes(plan)
        if not spill_rate:
            assert all(step.keep != "disk" for step in plan.steps)


def peak_by_moments(plan: Plan) -> int:
    """The rules of `plan.memory` once more, slowly: for every step, everything that is there while it runs."""
    steps, chunk, batch = plan.steps, plan.chunk_items, plan.batch_items
    users: dict[int | str, list[int]] = {}
    for index, step in enumerate(steps):
        users.setdefault(step.input if step.source is None else step.source, []).append(index)
    weights = [{one.fingerprint: one.weight_bytes for one in step.segments} for step in steps]
    loose = [sum(count for name, count in each.items() if name not in plan.resident) for each in weights]
    inputs = {each.input: each.input_bytes_per_item for each in plan.chains}
    outputs = [step.segments[-1].output_bytes_per_item for step in steps]
    moments = []
    for now, step in enumerate(steps):
        there = chunk * sum(inputs.values())
        for index in range(now):
            if steps[index].keep == "memory" and users[index][-1] >= now:
                there += chunk * outputs[index]
        there += outputs[now] * (chunk if step.finishes or step.keep == "memory" else batch)
        if step.source is not None and steps[step.source].keep == "disk":
            there += batch * outputs[step.source]
        moments.append(there + batch * max(one.peak_bytes_per_item for one in step.segments) + loose[now])
    features = [plan.num_items * outputs[index] for index, step in enumerate(steps) if step.finishes]
    wait_in_memory = plan.num_chunks > 1 and not plan.costs.spill_bytes_per_second
    total = max(moments) + (sum(features) if wait_in_memory else max(features))
    total += sum({name: count for each in weights for name, count in each.items() if name in plan.resident}.values())
    if plan.prefetch:
        total += max(loose) if len(steps) > 1 or plan.num_chunks > 1 else 0
        total += chunk * sum(inputs.values()) if plan.num_chunks > 1 else 0
    return total


def check_lifetimes(plan: Plan) -> None:
    """A source comes before its users and is kept for them; the last user frees it, and nothing is kept for nobody."""
    last_user = {step.input if step.source is None else step.source: index for index, step in enumerate(plan.steps)}
    for index, step in enumerate(plan.steps):
        source = step.input if step.source is None else step.source
        assert step.source is None or step.source < index
        assert step.frees_source == (last_user[source] == index)
        assert (step.keep == "nothing") == (index not in last_user)


def test_small_budgets_use_every_way_out() -> None:
    """Guards the test above: pools and budgets must lead to chunks, small batches, spilled and repeated outputs."""
    seen = Counter[str]()
    for seed, rate in itertools.product(range(25), (0.0, 50.0, 1e9)):
        first, *others = budgets(random_pool(seed), replace(COSTS, spill_bytes_per_second=rate))
        for plan in others:
            seen["chunks"] += plan.num_chunks > 1
            seen["small batch"] += plan.batch_items < COSTS.batch_items
            seen["spilled"] += any(step.keep == "disk" for step in plan.steps)
            seen["repeated"] += count_segments(plan) > count_segments(first)
            seen["no prefetch"] += not plan.prefetch
            seen["resident"] += bool(plan.resident)
    assert all(seen[way] > 0 for way in ("chunks", "small batch", "spilled", "repeated", "no prefetch", "resident")), (
        seen
    )


def count_segments(plan: Plan) -> int:
    return sum(len(step.segments) for step in plan.steps)


@pytest.mark.parametrize("seed", range(25))
def test_with_enough_memory_no_prefix_runs_twice(seed: int) -> None:
    chains = random_pool(seed)
    plan = make_plan(chains, num_items=20, costs=COSTS)
    prefixes = {(name, prints[:end]) for name, prints in expected(chains).values() for end in range(1, len(prints) + 1)}
    assert count_segments(plan) == len(prefixes)
    assert (plan.num_chunks, plan.prefetch) == (1, True)


@pytest.mark.parametrize("seed", range(40))
def test_no_depth_first_order_has_a_lower_peak(seed: int) -> None:
    plan = make_plan(random_pool(seed, num_models=6, depth=4), num_items=5, costs=COSTS)
    orders = list(itertools.islice(depth_first_orders(plan), 3000))
    assert peak_bytes(plan) == min(peak_bytes(reorder(plan, order)) for order in orders)


def test_the_order_of_children_matters_to_the_peak() -> None:
    """Guards the test above: in some pools a bad order takes more."""
    plans = [make_plan(random_pool(seed, num_models=6, depth=4), num_items=5, costs=COSTS) for seed in range(40)]
    worst = [
        max(peak_bytes(reorder(plan, order)) for order in itertools.islice(depth_first_orders(plan), 100))
        for plan in plans
    ]
    assert sum(peak > peak_bytes(plan) for peak, plan in zip(worst, plans, strict=True)) >= 5


def depth_first_orders(plan: Plan) -> Iterator[list[int]]:
    below: dict[int | str, list[int]] = {}
    for index, step in enumerate(plan.steps):
        below.setdefault(step.input if step.source is None else step.source, []).append(index)

    def run(places: list[int]) -> Iterator[list[int]]:
        for order in itertools.permutations(places):
            parts = [[[place, *rest] for rest in run(below.get(place, []))] for place in order]
            for chosen in itertools.product(*parts):
                yield [index for part in chosen for index in part]

    inputs = list(dict.fromkeys(step.input for step in plan.steps))
    for chosen in itertools.product(*[run(below[name]) for name in inputs]):
        yield [index for part in chosen for index in part]


def reorder(plan: Plan, order: list[int]) -> Plan:
    place = {index: new for new, index in enumerate(order)}
    steps = [plan.steps[index] for index in order]
    last_user = {step.input if step.source is None else step.source: new for new, step in enumerate(steps)}
    moved: list[Step] = []
    for new, step in enumerate(steps):
        source = None if step.source is None else place[step.source]
        frees = last_user[step.input if step.source is None else step.source] == new
        moved.append(replace(step, source=source, frees_source=frees))
    return replace(plan, steps=tuple(moved))


@pytest.mark.parametrize("seed", range(10))
def test_the_order_of_models_makes_no_difference_and_planning_changes_nothing(seed: int) -> None:
    chains = random_pool(seed)
    before = deepcopy(chains)
    shuffled = random.Random(seed).sample(chains, len(chains))
    for plan in budgets(chains):
        assert make_plan(shuffled, num_items=20, costs=plan.costs) == plan
    assert chains == before


def branching(*, flops: float, weights: int = 10) -> list[Chain]:
    """A trunk with a large output and three heads whose own trunk branches once more."""
    trunk = segment("trunk", flops=flops, output=100, weights=weights)
    middle = segment("middle", flops=1.0, output=100, weights=0)
    heads = [segment(f"head {index}", flops=1.0, weights=0) for index in range(4)]
    return [
        chain("a", [trunk, middle, heads[0]]),
        chain("b", [trunk, middle, heads[1]]),
        chain("c", [trunk, heads[2]]),
        chain("d", [trunk, heads[3]]),
    ]


@pytest.mark.parametrize(
    ("trunk_flops", "weights", "spill_rate", "way"),
    [
        (1e6, 10_000, 1e9, "spilled"),  # dear to compute again, dear to read again, a fast disk
        (1.0, 10_000, 0.001, "repeated"),  # the middle part is cheap to compute again, the disk slow
        (1e6, 1, 0.001, "chunked"),  # weights are cheaper still to read again
    ],
)
def test_the_cheapest_way_out_is_taken(trunk_flops: float, weights: int, spill_rate: float, way: str) -> None:
    chains = branching(flops=trunk_flops, weights=weights)
    costs = replace(COSTS, spill_bytes_per_second=spill_rate, weight_bytes_per_second=1000.0)
    free = make_plan(chains, num_items=100, costs=costs)
    # The unlimited plan holds two outputs of 10 000 bytes each; now there is room for one and a half, even without prefetch.
    memory_bytes = peak_bytes(replace(free, prefetch=False)) - 5_000
    tight = make_plan(chains, num_items=100, costs=replace(costs, memory_bytes=memory_bytes))
    seen = {
        "spilled": any(step.keep == "disk" for step in tight.steps),
        "chunked": tight.num_chunks > 1,
        "repeated": count_segments(tight) > count_segments(free),
    }
    assert [each for each, used in seen.items() if used] == [way]


def test_weights_stay_in_memory_where_there_is_room_and_are_read_once() -> None:
    trunk = segment("a", output=100, weights=50)
    chains = [chain("x", [trunk, segment("b", weights=50)]), chain("y", [trunk, segment("c")])]
    free = make_plan(chains, num_items=100, costs=COSTS)
    tight = make_plan(chains, num_items=100, costs=replace(COSTS, memory_bytes=peak_bytes(free) - 1))
    assert tight.num_chunks > 1
    assert tight.resident == {"a", "b", "c"}
    assert forecast_plan(tight).weight_bytes_read == 110


def test_an_end_that_follows_two_different_beginnings_is_read_once() -> None:
    plan = make_plan([chain("x", "ac"), chain("y", "bc")], num_items=10, costs=COSTS)
    assert plan.resident == {"c"}
    forecast = forecast_plan(plan)
    assert (forecast.weight_bytes, forecast.weight_bytes_read, forecast.num_segments_run) == (40, 30, 4)


def test_a_layer_that_is_gone_through_many_times_has_one_set_of_weights() -> None:
    plan = make_plan([chain("x", "abbbb"), chain("y", "abbc")], num_items=1, costs=COSTS)
    assert shape(plan) == [(None, "abb", ()), (0, "bb", ("x",)), (0, "c", ("y",))]
    assert forecast_plan(plan).weight_bytes_read == 30


@pytest.mark.parametrize("seed", range(10))
def test_a_plan_over_budget_says_what_would_fit(seed: int) -> None:
    chains = random_pool(seed)
    with pytest.raises(RequestError, match="cannot plan 12 models within 40 bytes") as caught:
        make_plan(chains, num_items=20, costs=replace(COSTS, memory_bytes=40))
    match = re.search(r"at least ([\d,]+) bytes", str(caught.value))
    assert match is not None
    enough = int(match[1].replace(",", ""))
    plan = make_plan(chains, num_items=20, costs=replace(COSTS, memory_bytes=enough))
    assert peak_bytes(plan) <= enough


def test_a_plan_over_budget_names_the_models_that_are_too_large() -> None:
    chains = [chain("small", "ab"), chain("huge", [segment("c", weights=10_000)])]
    with pytest.raises(RequestError, match=r"leave out 'huge'$"):
        make_plan(chains, num_items=10, costs=replace(COSTS, memory_bytes=1_000))
    make_plan(chains[:1], num_items=10, costs=replace(COSTS, memory_bytes=1_000))


@pytest.mark.parametrize(
    ("chains", "num_items", "costs", "message"),
    [
        ([], 1, COSTS, "for no models"),
        ([chain("x", "a")], 0, COSTS, "for 0 items"),
        ([chain("x", "")], 1, COSTS, "'x': expected a chain of at least one segment"),
        ([chain("x", "a"), chain("x", "b")], 1, COSTS, "'x' twice"),
        ([chain("x", "a"), replace(chain("y", "b"), input_bytes_per_item=4)], 1, COSTS, "'y': expected 3 bytes"),
        ([chain("x", "a")], 1, replace(COSTS, flops_per_second=0.0), "flops_per_second=0.0"),
        ([chain("x", "a")], 1, replace(COSTS, batch_items=0), "batch_items=0"),
    ],
)
def test_what_cannot_be_planned_is_refused(chains: list[Chain], num_items: int, costs: Costs, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make_plan(chains, num_items=num_items, costs=costs)


def test_a_pool_deeper_than_the_interpreter_s_stack_is_planned_and_explained() -> None:
    segments = [segment(str(place)) for place in range(3_000)]
    chains = [chain(f"model-{end}", segments[:end]) for end in range(1, 3_001)]
    plan = make_plan(chains, num_items=4, costs=COSTS)
    assert len(plan.steps) == 3_000
    (top,) = explain_plan(plan)
    assert top.num_models == 3_000


def test_a_forecast_of_one_step_is_known() -> None:
    costs = replace(COSTS, decode_seconds_per_item=0.5, score_seconds=7.0, launch_seconds=0.25)
    plan = make_plan([chain("x", "abc")], num_items=10, costs=costs)
    forecast = forecast_plan(plan)
    assert forecast.read_seconds == 3.0  # 30 bytes at 10 a second
    assert forecast.decode_seconds == 5.0
    assert forecast.forward_seconds == 30.0 + 5 * 0.25  # 10 items of 3 x 100 FLOPs, 5 batches
    assert forecast.score_seconds == 7.0
    assert forecast.total_seconds == 3.0 + 31.25 + 7.0  # decoding hides behind running, and nothing else can
    assert (forecast.flops, forecast.flops_run) == (3_000.0, 3_000.0)
    assert forecast.peak_bytes == peak_bytes(plan)


def test_where_the_same_cores_do_everything_only_reading_overlaps() -> None:
    costs = replace(COSTS, decode_seconds_per_item=0.5, score_seconds=7.0, one_pool=True)
    chains = [chain("x", "ab"), chain("y", "ac")]
    apart = forecast_plan(make_plan(chains, num_items=10, costs=replace(costs, one_pool=False)))
    together = forecast_plan(make_plan(chains, num_items=10, costs=costs))
    assert together.total_seconds == 1.0 + 5.0 + 30.0 + 14.0  # the first weights, decoding, three runs, two scores
    assert apart.total_seconds == 1.0 + 30.0 + 7.0  # the other score hides behind the last run


def test_without_prefetch_every_step_waits_for_its_weights() -> None:
    plan = make_plan([chain("x", "ab"), chain("y", "ac")], num_items=10, costs=COSTS)
    assert forecast_plan(plan).total_seconds == 31.0
    assert forecast_plan(replace(plan, prefetch=False)).total_seconds == 33.0


def test_measured_seconds_stand_before_flops() -> None:
    measured = replace(segment("b"), seconds_per_item=2.5)
    forecast = forecast_plan(make_plan([chain("x", [segment("a"), measured])], num_items=10, costs=COSTS))
    assert forecast.forward_seconds == 35.0


def test_chunks_are_forecast_as_if_each_was_walked_through() -> None:
    plan = make_plan([chain("x", "ab"), chain("y", "ac")], num_items=12, costs=COSTS)
    one_by_one = forecast_plan(replace(plan, chunk_items=1, batch_items=1))
    # A step runs 1 s and reads 1 s, so that only the first read is waited for; features flow to disk meanwhile, and the
    # last one's 12 bytes come back at 50 a second.
    assert one_by_one.total_seconds == pytest.approx(1.0 + 36.0 + 12 / 50)
    assert one_by_one.weight_bytes_read == 12 * 30
    assert one_by_one.spill_seconds == pytest.approx(2 * 24 / 50)


def test_of_two_chunks_the_second_reads_nothing_that_stayed_in_memory() -> None:
    plan = make_plan([chain("x", "ab")], num_items=12, costs=COSTS)
    plan = replace(plan, chunk_items=6, prefetch=False)
    features = 12 / 50  # come back from disk to be scored
    assert forecast_plan(plan).total_seconds == pytest.approx(2 * (2.0 + 12.0) + features)
    resident = replace(plan, resident=frozenset("ab"))
    assert forecast_plan(resident).total_seconds == pytest.approx(2.0 + 2 * 12.0 + features)
    assert forecast_plan(resident).weight_bytes_read == 20


def test_items_are_decoded_once_for_all_inputs_and_each_input_is_made_of_them_once() -> None:
    costs = replace(COSTS, decode_seconds_per_item=0.5, form_seconds_per_item={"32px": 0.25, "48px": 1.0})
    chains = [chain("x", "ab"), chain("y", "ac"), chain("z", "de", input="48px")]
    plan = make_plan(chains, num_items=10, costs=costs)
    assert forecast_plan(plan).decode_seconds == 5.0 + 2.5 + 10.0
    only = make_plan(chains[:2], num_items=10, costs=costs)
    assert forecast_plan(only).decode_seconds == 5.0 + 2.5
    assert [data.seconds for data in explain_plan(plan)] == [5.0 + 2.5, 10.0]  # the first is what they are decoded for


def test_the_first_step_waits_for_a_chunk_in_all_its_inputs() -> None:
    costs = replace(COSTS, decode_seconds_per_item=3.0, form_seconds_per_item={"32px": 1.0, "48px": 1.0})
    chains = [chain("x", "a"), chain("z", "b", input="48px")]  # 10 s each
    plan = make_plan(chains, num_items=10, costs=costs)
    assert forecast_plan(plan).total_seconds == 50.0 + 10.0
    one_pool = make_plan(chains, num_items=10, costs=replace(costs, one_pool=True))
    assert forecast_plan(one_pool).total_seconds == 1.0 + 50.0 + 20.0  # the first weights are read before
    halves = replace(plan, chunk_items=5)
    # the second is decoded while the first one runs, and features come back from disk at the end
    assert forecast_plan(halves).total_seconds == pytest.approx(25.0 + 25.0 + 5.0 + 10 / 50)


def test_sharing_is_counted() -> None:
    plan = make_plan([chain("x", "abc"), chain("y", "abd"), chain("z", "abe")], num_items=10, costs=COSTS)
    forecast = forecast_plan(plan)
    assert (forecast.num_segments, forecast.num_segments_run) == (9, 5)
    assert (forecast.flops, forecast.flops_run) == (9_000.0, 5_000.0)
    assert (forecast.weight_bytes, forecast.weight_bytes_read) == (90, 50)


def test_an_explanation_is_the_tree_of_the_plan() -> None:
    costs = replace(COSTS, decode_seconds_per_item=0.5)
    plan = make_plan([chain("x", "abc"), chain("y", "abd"), chain("z", "ab")], num_items=10, costs=costs)
    (data,) = explain_plan(plan)
    assert (data.label, data.num_models, data.output_bytes, data.seconds) == ("data 32px", 3, 30, 5.0)
    (trunk,) = data.children
    assert (trunk.label, trunk.finishes, trunk.num_models, trunk.keep) == ("segments 1 to 2", ("z",), 3, "memory")
    assert (trunk.flops, trunk.weight_bytes, trunk.output_bytes, trunk.seconds) == (2_000.0, 20, 10, 20.0)
    assert [(leaf.label, leaf.finishes, leaf.num_models) for leaf in trunk.children] == [
        ("segment 3", ("x",), 1),
        ("segment 3", ("y",), 1),
    ]


@pytest.mark.parametrize("seed", range(10))
def test_an_explanation_adds_up_to_the_forecast(seed: int) -> None:
    feeding = {"decode_seconds_per_item": 2.0, "form_seconds_per_item": {"32px": 0.5, "48px": 0.25}}
    for given in budgets(random_pool(seed)):
        plan = replace(given, costs=replace(given.costs, **feeding))
        forecast = forecast_plan(plan)
        nodes = list(walk(explain_plan(plan)))
        assert sum(node.flops for node in nodes) == pytest.approx(forecast.flops_run)
        assert sum(node.seconds for node in nodes) == pytest.approx(forecast.forward_seconds + forecast.decode_seconds)
        assert sorted(model for node in nodes for model in node.finishes) == sorted(each.model for each in plan.chains)


def walk(nodes: Sequence[ExplainedNode]) -> Iterator[ExplainedNode]:
    for node in nodes:
        yield node
        yield from walk(node.children)


def test_planning_does_not_load_torch() -> None:
    code = "import sys, modelhound.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_dropping_every_other_model_spares_what_nobody_else_needs() -> None:
    """A segment takes a second an item here."""
    apart = make_plan([chain("one", "ab"), chain("two", "cd")], num_items=10, costs=COSTS)
    assert halving_spares(apart) == pytest.approx(10 * (1 + 1))
    trunk = make_plan([chain("one", "aaax"), chain("two", "aaay")], num_items=10, costs=COSTS)
    # each end with a chance of a half, the trunk only where both are dropped
    assert halving_spares(trunk) == pytest.approx(10 * (0.5 + 0.5 + 3 / 4))
    many = make_plan(
        [chain(str(number), [*"ab", segment(f"x{number}")]) for number in range(3000)], num_items=1, costs=COSTS
    )
    assert halving_spares(many) == pytest.approx(3000 / 2)
