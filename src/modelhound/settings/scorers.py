"""The scorers and tasks there are, by name.

In:  a task and the scorers asked for
Out: those that judge it, and the one that decides
Nothing here computes a score; see `scores`.
"""

from collections.abc import Sequence
from typing import Literal, get_args

from modelhound.errors import RequestError

__all__ = [
    "ACCURACY_SCORERS",
    "DEFAULT_SCORERS",
    "METRICS",
    "SCORERS",
    "SCORERS_BEYOND_CLASSES",
    "TASKS",
    "Task",
    "decisive_scorer",
    "scorers_for",
]

SCORERS = (
    "ridge",
    "knn",
    "probe",
    "hscore",
    "logme",
    "centroid",
    "sgd_probe",
    "hscore_shrunk",
    "nleep",
    "transrate",
    "gbc",
    "sfda",
    "leep",
)
"""Every scorer there is; a test holds this list equal to the files in `scores`."""

DEFAULT_SCORERS = ("ridge", "knn", "probe", "hscore", "logme")

Task = Literal["classification", "multilabel", "regression"]
TASKS: tuple[Task, ...] = get_args(Task)
"""What is to be told of an item: its one class, which of several labels it has, or a number."""

METRICS: dict[Task, str] = {"classification": "accuracy", "multilabel": "ranking precision", "regression": "R2"}
"""What a score that judges item by item is the mean of."""

SCORERS_BEYOND_CLASSES: dict[Task, tuple[str, ...]] = {
    "multilabel": ("ridge", "knn", "probe", "logme"),
    "regression": ("ridge", "knn", "logme"),
}
"""Those that also judge tasks without one class per item; all others need classes."""

ACCURACY_SCORERS = ("ridge", "knn", "probe", "centroid", "sgd_probe")
"""Those that judge item by item: their value is a share of items. The first of these that is asked for decides a ranking."""


def scorers_for(task: Task, asked: Sequence[str] = ("auto",)) -> tuple[str, ...]:
    """The scorers asked for, or the usual ones, as far as they judge this task; asking for another is an error."""
    able = SCORERS_BEYOND_CLASSES.get(task, SCORERS)
    if tuple(asked) == ("auto",):
        return tuple(scorer for scorer in DEFAULT_SCORERS if scorer in able)
    unable = [scorer for scorer in asked if scorer not in able]
    if unable:
        raise RequestError(
            f"cannot use --scorers {unable[0]!r} for {task}: expected one or more of {', '.join(able)}, which need no classes"
        )
    return tuple(asked)


def decisive_scorer(scorers: Sequence[str]) -> str:
    """The scorer a ranking rests on: one that judges every item, so that items can be resampled."""
    for scorer in ACCURACY_SCORERS:
        if scorer in scorers:
            return scorer
    raise RequestError(
        f"cannot rank by {', '.join(scorers)} alone: expected at least one of {', '.join(ACCURACY_SCORERS)}, "
        "which judge item by item and so can say how sure a ranking is; add one to --scorers"
    )
