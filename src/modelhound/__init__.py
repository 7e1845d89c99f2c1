"""modelhound: which pretrained network to fine-tune, what that will cost, and where the time goes, by measuring.

    import modelhound
    result = modelhound.search("fashion", "zoo:*", limit=300)
    print(result.ranking.models[0].model)

Names are loaded on first use, so that `import modelhound` and `hound --help` never load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from modelhound.errors import HoundError, RequestError
    from modelhound.settings import PrepareSettings, SearchSettings
    from modelhound.verbs.doctor import doctor
    from modelhound.verbs.prepare import PrepareResult, prepare
    from modelhound.verbs.search import SearchResult, search

__all__ = [
    "HoundError",
    "PrepareResult",
    "PrepareSettings",
    "RequestError",
    "SearchResult",
    "SearchSettings",
    "__version__",
    "doctor",
    "prepare",
    "search",
]

__version__ = "0.1.0"

_HOMES = {
    "HoundError": "errors",
    "PrepareResult": "verbs.prepare",
    "PrepareSettings": "settings",
    "RequestError": "errors",
    "SearchResult": "verbs.search",
    "SearchSettings": "settings",
    "doctor": "verbs.doctor",
    "prepare": "verbs.prepare",
    "search": "verbs.search",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'modelhound' has no attribute {name!r}")
    return getattr(importlib.import_module(f"modelhound.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
