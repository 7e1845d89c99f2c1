"""What bounds a run and what would help, in words."""

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from modelhound.analysis.loader_advice import (
    ModelParts,
    Surroundings,
    advise,
    find_best_pairs,
    state_verdict,
    weigh_preparing,
)
from modelhound.analysis.loader_model import LoadLaw, StepLaw, compose
from modelhound.analysis.pairs import Pair, PairTimes, rate_pairs
from modelhound.records import BestPair, ItemsPrepared, KindAnswer, LengthPoint
from modelhound.settings import LoaderSettings

PAIR = (10, 2)


def parts(
    item_load: float, item_step: float, *, copy: float = 0.1, start: float = 0.0, items: int = 1000
) -> ModelParts:
    flat = ((0.0, math.log(item_load)),)
    load = LoadLaw(
        start_seconds=start,
        start_per_worker=0.0,
        by_batch=flat,
        by_workers=((0.0, 0.0), (math.log(8), 0.0)),
        inline=flat,
        stop=((1.0, 0.0),),
    )
    step = StepLaw(batches=(1, 100), seconds=(item_step, 100 * item_step), copy_share=copy, num_busy_cores=0.1)
    composed = compose(load, step, batch=PAIR[0], workers=PAIR[1], num_items=items, num_cores=100)
    return ModelParts(model="m", composed=composed, step=step, load=load)


def around(kind: str = "raw", *, cold: float | None = None, were_cold: bool = False, items: int = 1000) -> Surroundings:
    return Surroundings(
        item_kind=kind,
        modality="image",
        num_cores=4,
        num_items=items,
        device="cuda:0",
        cold_slowdown=cold,
        runs_were_cold=were_cold,
    )


def times(pairs: tuple[Pair, ...] = (PAIR, (20, 4)), rows: tuple[tuple[float, ...], ...] = ((2.0, 1.0),)) -> PairTimes:
    seconds = np.array(rows)
    return PairTimes(
        models=tuple(f"m{row}" for row in range(len(rows))),
        pairs=pairs,
        seconds=seconds,
        versions=np.repeat(seconds[None], 8, axis=0),
        is_measured=np.ones(seconds.shape, np.bool_),
    )


def bound_of(each: ModelParts, place: Surroundings) -> BestPair:
    (best,) = find_best_pairs(times(), PAIR, [each], place)
    return best


def test_what_takes_longest_bounds_the_run() -> None:
    assert bound_of(parts(0.01, 0.001), around()).bound == "decode"
    assert bound_of(parts(0.01, 0.001), around("preprocessed")).bound == "reading"
    assert bound_of(parts(0.01, 0.001), around("preprocessed", were_cold=True)).bound == "disk"
    assert bound_of(parts(0.001, 0.01), around()).bound == "compute"
    assert bound_of(parts(0.001, 0.01, copy=0.8), around()).bound == "copy"
    assert bound_of(parts(0.001, 0.001, start=30), around()).bound == "start-up"


def test_the_cores_a_model_needs_are_its_rate_times_the_time_of_an_item() -> None:
    best = bound_of(parts(0.008, 0.001), around())
    assert best.num_cores_needed == pytest.approx(8)
    assert (best.batch, best.workers, best.regret) == (20, 4, pytest.approx(1.0))
    assert best.speedup_if_free == pytest.approx(4, rel=0.02)


def test_advice_names_bounds_cores_disk_and_lengths_with_evidence() -> None:
    each = parts(0.008, 0.001)
    lengths = [
        LengthPoint(num_items=items, batch=batch, workers=workers, seconds=1.0, recommended_regret=regret)
        for items, batch, workers, regret in ((10, 10, 0, 0.5), (1000, 10, 2, 0.0), (10_000, 20, 4, 0.1))
    ]
    advice = advise([bound_of(each, around())], [each], PAIR, lengths, around(cold=3.0))
    text = " ".join(f"{one.text} {one.evidence}" for one in advice)
    assert "decode bounds m" in text
    assert "needs 8.0 cores" in text
    assert "3.0x as long to load" in text
    assert "up to 10 items 10 x 0, from 1000 items 10 x 2 and from 10000 items 20 x 4" in text
    assert "--kind raw,preprocessed" in text
    assert all(one.evidence for one in advice)


def test_no_rate_is_foretold_that_the_cores_cannot_reach() -> None:
    each = parts(0.01, 0.001)
    few = replace(around(), num_cores=2)
    (told, *_) = advise([bound_of(each, few)], [each], (10, 2), [], few)
    assert "200 items/s are loaded with 2 workers where nothing computes" in told.evidence
    (told, *_) = advise([bound_of(each, few)], [each], (10, 8), [], few)
    assert "At most 200 items/s can be loaded with 8 workers on 2 cores where nothing computes" in told.evidence


def test_the_verdict_names_the_pair_its_regret_and_what_is_as_good() -> None:
    table = times(((10, 2), (20, 4), (40, 4)), ((1.0, 1.0, 3.0), (2.0, 2.0, 4.0)))
    regret = rate_pairs(table)
    best = find_best_pairs(table, PAIR, [parts(0.01, 0.001)] * 2, around())
    verdict = state_verdict(regret, best, around())
    assert "raw: batch 10 with 2 workers suits both models: mean regret 0.0%" in verdict
    assert "As good within noise: 20 x 4." in verdict
    assert "Decode-bound (2 of 2): with loading for free 5.0x faster." in verdict
    assert "too short" not in verdict


def test_a_run_that_loading_for_free_would_halve_is_not_called_compute_bound_alone() -> None:
    table = times()
    alike = [
        msgspec.structs.replace(each, speedup_if_free=1.97)
        for each in find_best_pairs(table, PAIR, [parts(0.001, 0.01)], around())
    ]
    assert alike[0].bounds == ("compute", "loading")
    assert "Compute- and loading-bound (1 of 1): with loading for free 2.0x faster." in state_verdict(
        rate_pairs(table), alike, around()
    )
    assert "compute and loading bound m (" in advise(alike, [parts(0.001, 0.01)], PAIR, (), around())[0].text


def test_a_run_of_two_batches_is_too_short_to_tell() -> None:
    table = times()
    best = find_best_pairs(table, PAIR, [parts(0.01, 0.001, items=15)], around(items=15))
    assert "too short to tell" in state_verdict(rate_pairs(table), best, around(items=15))


def answer(kind: str, seconds: float) -> KindAnswer:
    best = BestPair(
        model="m",
        batch=8,
        workers=0,
        seconds=seconds,
        recommended_seconds=seconds,
        regret=0.0,
        bound="decode",
        num_cores_needed=1.0,
        speedup_if_free=1.0,
    )
    return KindAnswer(
        kind=kind,
        recommended=LoaderSettings(batch=8, workers=0),
        chance_within=1.0,
        interval=None,
        regret=(),
        top=(),
        models=(best,),
        lengths=(),
        seconds=(),
        advice=(),
        verdict="",
        noise=0.02,
        measuring_seconds=1.0,
        grid_seconds=1.0,
        num_runs=1,
        num_items=1000,
    )


def test_preparing_pays_back_after_as_many_runs_as_its_cost_takes_to_save() -> None:
    cost = ItemsPrepared(num_items=100, seconds=1.0, prepared_bytes=10**8, raw_bytes=10**7)  # 10 s for all 1000 items
    advice = weigh_preparing(answer("raw", 6.0), answer("preprocessed", 2.0), cost)
    assert advice is not None
    assert "pays back after 3 runs" in advice.text
    assert "1 GB, beside 100 MB" in advice.evidence
    useless = weigh_preparing(answer("raw", 2.0), answer("preprocessed", 2.0), cost)
    assert useless is not None
    assert "does not pay" in useless.text
