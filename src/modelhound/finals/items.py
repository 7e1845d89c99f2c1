"""Whether finals can be held on these items, and which fold each belongs to.

In:  a data set
Out: folds; a DataError where there are too few items
Nothing here knows a network.
"""

import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.trials import NUM_FOLDS, draw_folds
from modelhound.data import Dataset
from modelhound.data.choosing import strata
from modelhound.errors import DataError, RequestError
from modelhound.settings import SearchSettings

__all__ = ["check_finals", "finals_folds"]

_LEAST_PER_CLASS = 10
_LEAST_NUMBERS = 30
_NUM_SHOWN = 3


def check_finals(dataset: Dataset, settings: SearchSettings) -> None:
    """Refuse what finals cannot be held on, before anything is run."""
    if settings.layers == "best":
        raise RequestError("cannot use --finals with --layers best: expected one vector per text, use last or mean")
    if dataset.task == "classification":
        counts = np.bincount(dataset.targets, minlength=len(dataset.class_names))
        short = [
            f"{count} of {name!r}"
            for name, count in zip(dataset.class_names, counts.tolist(), strict=True)
            if count < _LEAST_PER_CLASS
        ]
        if short:
            raise DataError(
                f"cannot hold finals on {dataset.name!r}: expected at least {_LEAST_PER_CLASS} items of every class, found "
                f"{', '.join(short[:_NUM_SHOWN])}{' and others' if len(short) > _NUM_SHOWN else ''}; add items, raise --limit "
                "or leave --finals out"
            )
    elif len(dataset) < _LEAST_NUMBERS:
        raise DataError(
            f"cannot hold finals on {dataset.name!r}: expected at least {_LEAST_NUMBERS} items, found {len(dataset)}; "
            "add items, raise --limit or leave --finals out"
        )
    _check_folds(dataset, finals_folds(dataset, seed=settings.seed))


def finals_folds(dataset: Dataset, *, seed: int) -> NDArray[np.int64]:
    """A fold for each item; every fold has its share of every class."""
    return draw_folds(strata(dataset.targets, dataset.task), seed=seed)


def _check_folds(dataset: Dataset, folds: NDArray[np.int64]) -> None:
    """Whatever there is to tell must be seen in learning, whichever fold is tested on."""
    if dataset.task == "regression":
        return
    for fold in range(NUM_FOLDS):
        learned = dataset.targets[folds != fold]
        if dataset.task == "classification":
            seen = np.bincount(learned, minlength=len(dataset.class_names)) > 0
        else:
            seen = learned.any(0) | ~dataset.targets.any(0)
        for name, is_seen in zip(dataset.class_names, seen.tolist(), strict=True):
            if not is_seen:
                raise DataError(
                    f"cannot hold finals on {dataset.name!r}: expected items of {name!r} in every fold, but without fold "
                    f"{fold + 1} of {NUM_FOLDS} there are none to learn from; add some or leave --finals out"
                )
