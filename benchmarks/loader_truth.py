"""How much longer one pair takes than another, measured well enough to see one percent.

In:  a few pairs, models, items, some time
Out: seconds of every pair with every model in rounds, and the regret of any of these pairs over another with an interval
A grid knows every cell from one run, which scatters by several percent; and the best of many noisy cells looks better than it
is. So the pairs that matter are run again: in every round each model meets every pair once, in an order of chance, so that a
slow minute of the machine hits all pairs alike. What was chosen by earlier runs is judged by these alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelhound.data import Dataset
from modelhound.feeding.runs import Feed, measure_run
from modelhound.meter import seconds_now
from modelhound.models import Network

__all__ = ["Truth", "repeat_pairs"]

_LEAST_ROUNDS, _MOST_ROUNDS = 2, 60
_NUM_RESAMPLES = 2000
_TAILS = (0.025, 0.975)

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Truth:
    """Rounds of the pairs that matter."""

    pairs: tuple[Pair, ...]
    models: tuple[str, ...]
    seconds: NDArray[np.float64]
    """[rounds, models, pairs]"""

    def regret_over(self, pair: Pair, other: Pair | None) -> dict[str, Any]:
        """Mean over models, of the medians over rounds; `other` None is the pair that does best in these very rounds, which
        is too good by some luck. The interval is that of other rounds (bootstrap)."""
        generator = np.random.default_rng(0)
        picked = generator.integers(0, len(self.seconds), (_NUM_RESAMPLES, len(self.seconds)))
        found = [self._difference(self.seconds[rounds], pair, other) for rounds in picked]
        low, high = np.quantile(found, _TAILS)
        return {"regret": self._difference(self.seconds, pair, other), "interval": (float(low), float(high))}

    def describe(self) -> dict[str, Any]:
        """How repeatable it is: what one run scatters by, and what one round of all models, in which runs are compared."""
        logs = np.log(self.seconds)
        shared = logs.mean(axis=(1, 2), keepdims=True)
        regrets = np.array([_mean_regrets(each) for each in self.seconds])
        best = int(_mean_regrets(np.median(self.seconds, axis=0)).argmin())
        return {
            "pairs": [list(pair) for pair in self.pairs],
            "num_rounds": len(self.seconds),
            "one_run_scatters_by": float((logs - shared).std(axis=0, ddof=1).mean()),
            "one_round_scatters_by": float((regrets - regrets[:, [best]]).std(axis=0, ddof=1).mean()),
            "best": list(self.pairs[best]),
            "median_seconds": np.median(self.seconds, axis=0).round(4).tolist(),
            "seconds": self.seconds.round(4).tolist(),
        }

    def _difference(self, seconds: NDArray[np.float64], pair: Pair, other: Pair | None) -> float:
        regrets = _mean_regrets(np.median(seconds, axis=0))
        reference = regrets.min() if other is None else regrets[self.pairs.index(other)]
        return float(regrets[self.pairs.index(pair)] - reference)


def repeat_pairs(
    networks: Mapping[str, Network],
    dataset: Dataset,
    feed: Feed,
    pairs: Sequence[Pair],
    *,
    kind: str,
    items: int,
    seconds: float,
) -> Truth:
    """As many rounds as fit into the time, two at least."""
    generator = np.random.default_rng(1)
    models, rounds, start = tuple(networks), [], seconds_now()
    while len(rounds) < _MOST_ROUNDS:
        spent = seconds_now() - start
        if len(rounds) >= _LEAST_ROUNDS and spent * (1 + 1 / len(rounds)) > seconds:
            break
        taken = np.empty((len(models), len(pairs)))
        for row in generator.permutation(len(models)):
            for column in generator.permutation(len(pairs)):
                batch, workers = pairs[column]
                run = measure_run(
                    networks[models[row]],
                    dataset,
                    feed,
                    item_kind=kind,
                    model=models[row],
                    batch=batch,
                    workers=workers,
                    num_items=items,
                )
                taken[row, column] = run.wall_seconds
        rounds.append(taken)
    return Truth(pairs=tuple(pairs), models=models, seconds=np.array(rounds))


def _mean_regrets(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """[pairs], of seconds [models, pairs]."""
    return np.asarray((seconds / seconds.min(axis=1, keepdims=True) - 1).mean(axis=0))
