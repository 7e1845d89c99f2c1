"""A race of pairs by somebody who has measured neither loading nor computing apart: where to begin, and what to believe.

What `hound loader` knows before its first run is worth what it beats this by.
"""

from collections.abc import Callable, Sequence

import numpy as np

from modelhound.analysis.pairs import Pair
from modelhound.analysis.surface import Doubt, believe, choose_next

_UNKNOWN = Doubt(
    of_model=0.5,
    of_batch=0.3,
    of_workers=0.6,
    of_both=0.05,
    of_pair=0.003,
    of_model_and_pair=0.003,
    of_model_along=0.003,
    of_step=0.0,
    of_guess=0.0,
    of_load=0.0,
    along_batch=2.5,
    along_workers=2.5,
)
"""Where nothing is known but that times change smoothly."""


def choose_blindly(pairs: Sequence[Pair], take: Callable[[Pair], float], *, num_runs: int, noise: float) -> Pair:
    """The pair that looks best after so many runs; `take` makes one and tells its seconds."""
    nothing = np.ones((1, len(pairs)))
    runs: dict[tuple[int, int], list[float]] = {}

    def run(column: int) -> None:
        runs.setdefault((0, column), []).append(take(pairs[column]))

    for pair in first_pairs(pairs)[:num_runs]:
        run(pairs.index(pair))
    while sum(map(len, runs.values())) < num_runs:
        run(choose_next(believe(("all",), pairs, nothing, runs, doubt=_UNKNOWN, noise=noise))[1])
    belief = believe(("all",), pairs, nothing, runs, doubt=_UNKNOWN, noise=noise)
    return pairs[int(belief.mean[0].argmin())]


def first_pairs(pairs: Sequence[Pair]) -> tuple[Pair, ...]:
    """Where to begin when nothing is known: the middle, and from there towards the ends of both axes."""
    batches, workers = (sorted({pair[axis] for pair in pairs}) for axis in (0, 1))
    middle = (batches[(len(batches) - 1) // 2], workers[(len(workers) - 1) // 2])
    around = [
        middle,
        *((each, middle[1]) for each in (batches[0], batches[-1])),
        *((middle[0], workers[round(share * (len(workers) - 1))]) for share in (0.25, 0.75)),
    ]
    return tuple(dict.fromkeys(pair for pair in around if pair in pairs))
