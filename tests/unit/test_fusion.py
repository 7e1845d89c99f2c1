"""One opinion from many (benchmarks/quality_fusion.py): when it is worth having, and that it learns from other pools only."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from benchmark_scripts import load_script

fusion = load_script("quality_fusion")
Pool, fuse, judge_fusion = fusion.Pool, fusion.fuse, fusion.judge_fusion
learn_fusion, weighted_agreement = fusion.learn_fusion, fusion.weighted_agreement


def make_pools(num_pools: int = 6, *, noise: float, seed: int = 0, perfect: bool = False) -> list[Any]:
    """Two scorers that err independently, one that knows nothing, and size."""
    generator = np.random.default_rng(seed)
    pools = []
    for number in range(num_pools):
        truth = generator.uniform(0.5, 0.9, 24)
        spread = noise * truth.std()
        parts = {
            "first": truth + generator.normal(0, 0 if perfect else spread, 24),
            "second": 1000 * (truth + generator.normal(0, spread, 24)),
            "nothing": generator.normal(0, 1, 24),
            "size": generator.lognormal(16, 1, 24),
        }
        pools.append(Pool(name=f"pool-{number}", parts=parts, truth=truth))
    return pools


def test_two_scorers_that_err_apart_are_better_together() -> None:
    judged = judge_fusion(make_pools(5, noise=1.0))
    assert judged.best_part in ("first", "second")
    assert judged.fused.mean() > judged.best_part_alone.mean() + 0.03
    assert judged.ships


def test_a_fusion_that_does_not_beat_its_best_part_is_not_shipped() -> None:
    judged = judge_fusion(make_pools(4, noise=2.0, perfect=True))
    assert judged.best_part == "first"
    assert judged.best_part_alone.mean() == pytest.approx(1.0)
    assert not judged.ships


def test_what_knows_nothing_counts_for_next_to_nothing() -> None:
    weights = learn_fusion(make_pools(8, noise=0.7)).weights
    assert abs(weights["nothing"]) < 0.2 * weights["first"]
    assert weights["first"] == pytest.approx(weights["second"], rel=0.4)


def test_only_the_order_within_a_pool_counts() -> None:
    pools = make_pools(noise=0.7)
    fusion = learn_fusion(pools)
    parts = dict(pools[0].parts)
    parts["first"] = np.exp(30 * parts["first"])
    np.testing.assert_allclose(fuse(fusion, parts), fuse(fusion, pools[0].parts))


def test_a_pool_is_judged_by_weights_of_the_others() -> None:
    pools = make_pools(4, noise=0.7)
    judged = judge_fusion(pools)
    by_hand = weighted_agreement(fuse(learn_fusion(pools[1:]), pools[0].parts), pools[0].truth)
    assert judged.fused[0] == pytest.approx(by_hand)


def test_parts_that_a_pool_lacks_are_left_out() -> None:
    pools = make_pools(4, noise=0.7)
    lacking = Pool(name="other", parts={"first": pools[0].parts["first"]}, truth=pools[0].truth)
    assert set(learn_fusion([*pools, lacking]).weights) == {"first"}
    with pytest.raises(ValueError, match="expected some of"):
        fuse(learn_fusion([*pools, lacking]), {"second": np.arange(3.0)})


def test_two_pools_are_too_few_to_judge() -> None:
    with pytest.raises(ValueError, match="three or more"):
        judge_fusion(make_pools(2, noise=1.0))


def test_a_scorer_that_tells_nobody_apart_agrees_with_nothing() -> None:
    assert weighted_agreement(np.zeros(5), np.arange(5.0)) == 0.0


def test_weights_that_know_families_and_not_scorers_are_not_shipped() -> None:
    """The same families in every pool, and nothing but the family decides who is best."""
    generator = np.random.default_rng(0)
    families = tuple(f"family{place % 4}" for place in range(24))
    worth = {f"family{place}": value for place, value in enumerate((0.9, 0.5, 0.8, 0.6))}
    pools = []
    for number in range(4):
        truth = np.array([worth[each] for each in families]) + generator.normal(0, 0.02, 24)
        parts = {each: np.array([float(each == own) for own in families]) for each in worth}
        parts["scorer"] = truth + generator.normal(0, 0.3 * truth.std(), 24)
        pools.append(Pool(name=f"pool-{number}", parts=parts, truth=truth, families=families))
    judged = judge_fusion(pools)
    assert judged.fused.mean() > judged.best_part_alone.mean() + 0.02
    assert judge_fusion([dataclasses.replace(pool, families=()) for pool in pools]).ships
    assert not judged.ships
