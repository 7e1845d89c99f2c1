"""One opinion from many: what all scorers of a pass, and size, say together of who will fine-tune best.

In:  pools of models (one per data set) with what each scorer says and, to learn from, their true scores
Out: a Fusion: a weight for each part; how well it orders pools that it was not learned from, beside its best single part
Nothing here runs a model, and as long as no fusion is worth having, nothing in the package asks for one.

Scorers speak in units of their own, so that only their order within a pool counts (as normal scores). Weights are found by
ridge regression on the pools' standardised truth, and its strength by leaving one pool out at a time. A fusion is worth having
only where it beats its best part on pools that were left out; `judge_fusion` says whether. Where the same networks stand in
every pool, weights may know them and not the scorers: so it is also asked of families of networks that were left out of the
lessons, as those of a user will be.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = ["Fusion", "FusionJudged", "Pool", "fuse", "judge_fusion", "learn_fusion", "weighted_agreement"]

_LEAST_STRANGERS = 4  # that an order can be asked of
_STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The candidates for one data set."""

    name: str
    parts: Mapping[str, Floats]
    """What each scorer says of each candidate; size may be one of them."""
    truth: Floats
    """The scores after full fine-tuning; empty where nobody knows."""
    families: tuple[str, ...] = ()
    """Of each candidate; where they are not told, networks are not left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusion:
    """How much each part counts."""

    weights: Mapping[str, float]
    strength: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FusionJudged:
    """Whether a fusion is worth having."""

    fused: Floats
    """Weighted tau with the truth on each pool, by weights learned from the others."""
    best_part: str
    """The part with the best mean on the pools; it had the advantage of being chosen with all of them in sight."""
    best_part_alone: Floats
    of_strangers: Floats
    """Like `fused`, but only the networks of families that the weights were not learned from."""
    best_part_of_strangers: Floats
    ships: bool


def learn_fusion(pools: Sequence[Pool]) -> Fusion:
    """Weights from pools whose truth is known; parts that some pool lacks are left out."""
    names = _shared_parts(pools)
    designs, strength = [_design(pool, names) for pool in pools], _STRENGTHS[-1]
    if len(pools) > 1:
        strength = max(_STRENGTHS, key=lambda each: float(np.mean(_hold_out(pools, designs, each))))
    weights = _solve(pools, designs, strength)
    return Fusion(weights=dict(zip(names, weights.tolist(), strict=True)), strength=strength)


def fuse(fusion: Fusion, parts: Mapping[str, Floats]) -> Floats:
    """One number per candidate, the larger the better; to be compared within this pool only."""
    known = [name for name in fusion.weights if name in parts]
    if not known:
        raise ValueError(f"cannot fuse {sorted(parts)}: expected some of {sorted(fusion.weights)}")
    return np.asarray(sum(fusion.weights[name] * _normal_scores(parts[name]) for name in known))


def judge_fusion(pools: Sequence[Pool]) -> FusionJudged:
    """Learn from all pools but one, order that one, in turns; at least three pools."""
    if len(pools) < 3:
        raise ValueError(f"cannot judge a fusion on {len(pools)} pools: expected three or more, add data sets")
    fused = []
    for place, pool in enumerate(pools):
        others = [each for number, each in enumerate(pools) if number != place]
        fused.append(weighted_agreement(fuse(learn_fusion(others), pool.parts), pool.truth))
    alone = {
        name: np.array([weighted_agreement(pool.parts[name], pool.truth) for pool in pools])
        for name in _shared_parts(pools)
    }
    best = max(alone, key=lambda name: float(alone[name].mean()))
    strangers, part = _judge_strangers(pools, best)
    return FusionJudged(
        fused=np.array(fused),
        best_part=best,
        best_part_alone=alone[best],
        of_strangers=strangers,
        best_part_of_strangers=part,
        ships=_is_better(np.array(fused) - alone[best]) and (not len(part) or _is_better(strangers - part)),
    )


def _judge_strangers(pools: Sequence[Pool], best: str) -> tuple[Floats, Floats]:
    """Half of the families teach, the networks of the others are ordered, in every way to halve them; a mean for each pool."""
    families = sorted({family for pool in pools for family in pool.families})
    found: list[list[tuple[float, float]]] = [[] for _ in pools]
    for teachers in itertools.combinations(families, len(families) // 2):
        taught = [_part_of(pool, [family in teachers for family in pool.families]) for pool in pools]
        for place, pool in enumerate(pools):
            asked = _part_of(pool, [family not in teachers for family in pool.families])
            others = [each for number, each in enumerate(taught) if number != place]
            if min(len(each.truth) for each in (asked, *others)) >= _LEAST_STRANGERS:
                fused = weighted_agreement(fuse(learn_fusion(others), asked.parts), asked.truth)
                found[place].append((fused, weighted_agreement(asked.parts[best], asked.truth)))
    if not all(found):
        return np.empty(0), np.empty(0)
    means = np.array([np.mean(each, axis=0) for each in found])
    return means[:, 0], means[:, 1]


def _part_of(pool: Pool, chosen: Sequence[bool]) -> Pool:
    kept = np.array(chosen, dtype=bool)
    parts = {name: values[kept] for name, values in pool.parts.items()}
    return Pool(name=pool.name, parts=parts, truth=pool.truth[kept])


def _is_better(gains: Floats) -> bool:
    """By more than the standard error of the mean: of few pools, luck gives that much to one of them."""
    return float(gains.mean()) > float(gains.std(ddof=1)) / math.sqrt(len(gains))


def weighted_agreement(scores: Floats, truth: Floats) -> float:
    """Kendall's tau in which the first places count most; 0 where one of them tells no two apart."""
    if len(np.unique(scores)) < 2 or len(np.unique(truth)) < 2:
        return 0.0
    return float(stats.weightedtau(scores, truth).statistic)


def _shared_parts(pools: Sequence[Pool]) -> list[str]:
    return [name for name in pools[0].parts if all(name in pool.parts for pool in pools)]


def _hold_out(pools: Sequence[Pool], designs: Sequence[Floats], strength: float) -> list[float]:
    """Weighted tau of each pool by weights of the others."""
    found = []
    for place, pool in enumerate(pools):
        others = [number for number in range(len(pools)) if number != place]
        weights = _solve([pools[each] for each in others], [designs[each] for each in others], strength)
        found.append(weighted_agreement(designs[place] @ weights, pool.truth))
    return found


def _solve(pools: Sequence[Pool], designs: Sequence[Floats], strength: float) -> Floats:
    inputs = np.concatenate(designs)
    wanted = np.concatenate([_standardised(pool.truth) for pool in pools])
    gram = inputs.T @ inputs + strength * np.eye(inputs.shape[1])
    return np.asarray(np.linalg.solve(gram, inputs.T @ wanted))


def _design(pool: Pool, names: Sequence[str]) -> Floats:
    return np.stack([_normal_scores(pool.parts[name]) for name in names], axis=1)


def _normal_scores(values: Floats) -> Floats:
    """The order of the values, as places on a normal distribution; equal values share theirs."""
    ranks = stats.rankdata(values)
    return np.asarray(stats.norm.ppf((ranks - 0.5) / len(ranks)))


def _standardised(values: Floats) -> Floats:
    deviation = float(values.std())
    return np.asarray((values - values.mean()) / deviation) if deviation > 0 else np.zeros_like(values)
