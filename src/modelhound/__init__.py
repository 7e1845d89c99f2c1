"""modelhound: which pretrained network to fine-tune, what that will cost, and where the time goes, by measuring.

    import modelhound
    result = modelhound.search("fashion", "zoo:*", limit=300)
    print(result.ranking.models[0].model)

Names are loaded on first use, so that `import modelhound` and `hound --help` never load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelhound.data.recommended import read_loader
    from modelhound.errors import HoundError, RequestError
    from modelhound.settings import (
        BreakevenSettings,
        LatencySettings,
        LoaderSearchSettings,
        LoaderSettings,
        PrepareSettings,
        ProfileSettings,
        SearchSettings,
        TrainSettings,
    )
    from modelhound.verbs.breakeven import BreakevenResult, breakeven
    from modelhound.verbs.doctor import doctor
    from modelhound.verbs.latency import LatencyResult, latency
    from modelhound.verbs.loader import LoaderResult, loader
    from modelhound.verbs.prepare import PrepareResult, prepare
    from modelhound.verbs.profile import ProfileResult, profile
    from modelhound.verbs.search import SearchResult, search
    from modelhound.verbs.train import TrainResult, train

__all__ = [
    "BreakevenResult",
    "BreakevenSettings",
    "HoundError",
    "LatencyResult",
    "LatencySettings",
    "LoaderResult",
    "LoaderSearchSettings",
    "LoaderSettings",
    "PrepareResult",
    "PrepareSettings",
    "ProfileResult",
    "ProfileSettings",
    "RequestError",
    "SearchResult",
    "SearchSettings",
    "TrainResult",
    "TrainSettings",
    "__version__",
    "breakeven",
    "doctor",
    "latency",
    "loader",
    "prepare",
    "profile",
    "read_loader",
    "search",
    "train",
]

__version__ = "0.1.0"

_HOMES = {
    "BreakevenResult": "verbs.breakeven",
    "BreakevenSettings": "settings",
    "breakeven": "verbs.breakeven",
    "HoundError": "errors",
    "LatencyResult": "verbs.latency",
    "LatencySettings": "settings",
    "LoaderResult": "verbs.loader",
    "LoaderSearchSettings": "settings",
    "LoaderSettings": "settings",
    "PrepareResult": "verbs.prepare",
    "PrepareSettings": "settings",
    "ProfileResult": "verbs.profile",
    "ProfileSettings": "settings",
    "RequestError": "errors",
    "SearchResult": "verbs.search",
    "SearchSettings": "settings",
    "TrainResult": "verbs.train",
    "TrainSettings": "settings",
    "doctor": "verbs.doctor",
    "latency": "verbs.latency",
    "loader": "verbs.loader",
    "read_loader": "data.recommended",
    "prepare": "verbs.prepare",
    "profile": "verbs.profile",
    "search": "verbs.search",
    "train": "verbs.train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'modelhound' has no attribute {name!r}")
    return getattr(importlib.import_module(f"modelhound.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
