"""One opinion from many: what all scorers of a pass, and size, say together of who will fine-tune best.

In:  pools of models (one per data set) with what each scorer says and, to learn from, their true scores
Out: a Fusion: a weight for each part; how well it orders pools that it was not learned from, beside its best single part
Nothing here runs a model. Scorers speak in units of their own, so that only their order within a pool counts (as normal
scores). Weights are found by ridge regression on the pools' standardised truth, and its strength by leaving one pool out at a
time. A fusion is worth having only where it beats its best part on pools that were left out; `judge_fusion` says whether.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

__all__ = ["Fusion", "FusionJudged", "Pool", "fuse", "judge_fusion", "learn_fusion", "weighted_agreement"]

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
    ships: bool


def learn_fusion(pools: Sequence[Pool]) -> Fusion:
    """Weights from pools whose truth is known; parts that some pool lacks are left out."""
    names = _shared_parts(pools)
    strength = _STRENGTHS[-1]
    if len(pools) > 1:
        strength = max(_STRENGTHS, key=lambda each: float(np.mean(_hold_out(pools, names, each))))
    weights = _solve(pools, names, strength)
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
    return FusionJudged(
        fused=np.array(fused),
        best_part=best,
        best_part_alone=alone[best],
        ships=_is_better(np.array(fused) - alone[best]),
    )


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


def _hold_out(pools: Sequence[Pool], names: Sequence[str], strength: float) -> list[float]:
    """Weighted tau of each pool by weights of the others."""
    found = []
    for place, pool in enumerate(pools):
        weights = _solve([each for number, each in enumerate(pools) if number != place], names, strength)
        found.append(weighted_agreement(_design(pool, names) @ weights, pool.truth))
    return found


def _solve(pools: Sequence[Pool], names: Sequence[str], strength: float) -> Floats:
    inputs = np.concatenate([_design(pool, names) for pool in pools])
    wanted = np.concatenate([_standardised(pool.truth) for pool in pools])
    gram = inputs.T @ inputs + strength * np.eye(len(names))
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
