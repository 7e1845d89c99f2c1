"""Which items to train and which to test on.

In:  TrainSettings
Out: two data sets with the same classes
Nothing here knows a network.
"""

import dataclasses

import numpy as np

from modelhound.data import Dataset, open_asked
from modelhound.errors import DataError, RequestError
from modelhound.records import Watch
from modelhound.settings import Task, TrainSettings
from modelhound.training.bench import split_items

__all__ = ["open_items"]

_USUAL_PART = "train"
_TEST_SHARE = 4  # with --limit: training items per test item of a test part


def open_items(settings: TrainSettings, watch: Watch) -> tuple[Dataset, Dataset]:
    """Training and test items: two parts of the data set, or one part of which a fifth is held out."""

    def open_part(split: str | None, limit: int | None, option: str, task: Task | None = None) -> Dataset:
        asked = dataclasses.replace(settings, split=split, limit=limit, task=task or settings.task)
        return open_asked(asked, split_option=option, watch=watch)

    # with a part to test on there are parts, and the one to train on has this name nearly always
    split = settings.split if settings.test is None else settings.split or _USUAL_PART
    dataset = open_part(split, settings.limit, "--split" if settings.split else "")
    if settings.test is None:
        return split_items(dataset, seed=settings.seed)
    if settings.test == split:
        raise RequestError(
            f"cannot test on part {settings.test!r}, which is trained on: expected another --test, or leave it out"
        )
    limit = None
    if settings.limit is not None:
        limit = max(settings.limit // _TEST_SHARE, 2 * len(dataset.class_names), 4)
    test = open_part(settings.test, limit, "--test")
    if test.task != dataset.task:  # numbers of which all in this part happen to be whole would be taken for classes
        test = open_part(settings.test, limit, "--test", dataset.task)
    return dataset, _same_classes(dataset, test, settings.test)


def _same_classes(dataset: Dataset, test: Dataset, part: str) -> Dataset:
    """The test items with the training items' numbers for classes; a label that the head does not have is a DataError."""
    if dataset.task == "regression" or dataset.class_names == test.class_names:
        return test
    unknown = [name for name in test.class_names if name not in dataset.class_names]
    if unknown:
        raise DataError(
            f"cannot test on part {part!r} of {dataset.name!r}: expected the classes of the training items, found "
            f"{unknown[0]!r}; train on a part that has it, or leave --test out"
        )
    places = np.array([dataset.class_names.index(name) for name in test.class_names], dtype=np.int64)
    if dataset.task == "classification":
        targets = places[test.targets]
    else:  # labels that no test item has
        targets = np.zeros((len(test), len(dataset.class_names)), dtype=np.bool_)
        targets[:, places] = test.targets
    return dataclasses.replace(test, targets=targets, class_names=dataset.class_names)
