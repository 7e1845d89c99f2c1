"""What was asked: plain, frozen, checked, and the same object from Python, argv and a file.

In:  values a person chose
Out: settings that are valid as far as can be told without looking at the machine
Nothing here opens a file, imports torch or looks for a device: settings describe and never act. One file per verb;
`data` and `models` hold what several verbs ask, `checks` how values are put right or refused.
"""

from modelhound.settings.breakeven import BREAKEVEN_MODELS, BreakevenSettings
from modelhound.settings.checks import parse_share, split_list
from modelhound.settings.data import DataSettings
from modelhound.settings.latency import LATENCY_MODELS, LatencySettings
from modelhound.settings.loader import LoaderFile, LoaderSearchSettings, LoaderSettings
from modelhound.settings.models import DEFAULT_MODELS, PLAIN, ModelSettings
from modelhound.settings.prepare import PrepareSettings
from modelhound.settings.profile import PROFILE_MODELS, LastLayers, ProfileSettings
from modelhound.settings.report import ReportSettings, parse_chart_formats
from modelhound.settings.scorers import (
    ACCURACY_SCORERS,
    DEFAULT_SCORERS,
    METRICS,
    SCORERS,
    SCORERS_BEYOND_CLASSES,
    Task,
    decisive_scorer,
    scorers_for,
)
from modelhound.settings.search import DEFAULT_TOP, MOST_FINALISTS, SearchSettings
from modelhound.settings.train import RecipeSettings, TrainSettings

__all__ = [
    "ACCURACY_SCORERS",
    "BREAKEVEN_MODELS",
    "DEFAULT_MODELS",
    "DEFAULT_SCORERS",
    "DEFAULT_TOP",
    "LATENCY_MODELS",
    "METRICS",
    "MOST_FINALISTS",
    "PLAIN",
    "PROFILE_MODELS",
    "SCORERS",
    "SCORERS_BEYOND_CLASSES",
    "BreakevenSettings",
    "DataSettings",
    "LastLayers",
    "LatencySettings",
    "LoaderFile",
    "LoaderSearchSettings",
    "LoaderSettings",
    "ModelSettings",
    "PrepareSettings",
    "ProfileSettings",
    "RecipeSettings",
    "ReportSettings",
    "SearchSettings",
    "Task",
    "TrainSettings",
    "decisive_scorer",
    "parse_chart_formats",
    "parse_share",
    "scorers_for",
    "split_list",
]
