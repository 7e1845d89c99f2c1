"""What was asked: plain, frozen, checked, and the same object from Python, argv and a file.

In:  values a person chose
Out: settings that are valid as far as can be told without looking at the machine
Nothing here opens a file, imports torch or looks for a device: settings describe and never act. One file per verb;
`data` and `models` hold what several verbs ask, `checks` how values are put right or refused.
"""

from modelhound.settings.checks import parse_bytes, split_list
from modelhound.settings.data import ROLES, DataSettings
from modelhound.settings.models import DEFAULT_MODELS, PLAIN, ModelSettings
from modelhound.settings.prepare import PrepareSettings
from modelhound.settings.scorers import (
    ACCURACY_SCORERS,
    DEFAULT_SCORERS,
    METRICS,
    SCORERS,
    SCORERS_BEYOND_CLASSES,
    TASKS,
    Task,
    decisive_scorer,
    scorers_for,
)
from modelhound.settings.search import DEFAULT_TOP, SearchSettings

__all__ = [
    "ACCURACY_SCORERS",
    "DEFAULT_MODELS",
    "DEFAULT_SCORERS",
    "DEFAULT_TOP",
    "METRICS",
    "PLAIN",
    "ROLES",
    "SCORERS",
    "SCORERS_BEYOND_CLASSES",
    "TASKS",
    "DataSettings",
    "ModelSettings",
    "PrepareSettings",
    "SearchSettings",
    "Task",
    "decisive_scorer",
    "parse_bytes",
    "scorers_for",
    "split_list",
]
