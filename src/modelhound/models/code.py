"""Whose code a network runs.

In:  a class or a function
Out: a text that names it, and that changes when its code may have
Nothing here runs any of it. The code of libraries is known by their versions, which whoever keeps features knows as well; that
of strangers is known by the files it is written in. What these import from others is not looked at.
"""

import functools
import hashlib
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["LIBRARIES", "name_class", "name_function"]

LIBRARIES = ("torch", "timm", "transformers", "torchvision")
_KNOWN_BY_VERSION = frozenset({*LIBRARIES, "modelhound", *sys.stdlib_module_names})
_SIMPLE = (bool, int, float, str, tuple)
_EMPTY = types.CellType()


def name_class(kind: type) -> str:
    """The class, and the files of those that it is made from."""
    return " ".join([kind.__qualname__, *dict.fromkeys(_name_module(each.__module__) for each in kind.__mro__)])


def name_function(function: Callable[..., Any]) -> str:
    """The function, its file, and what it was made with: settings, and other functions."""
    held: list[Any] = []
    if isinstance(function, functools.partial):
        held, function = [*function.args, *function.keywords.items()], function.func
    if not hasattr(function, "__qualname__"):
        return name_class(type(function))
    held += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell != _EMPTY]
    made_with = [each if isinstance(each, _SIMPLE) else getattr(each, "__qualname__", "") for each in held]
    return f"{function.__qualname__} {_name_module(function.__module__ or '')} {made_with!r}"


def _name_module(name: str) -> str:
    if name.partition(".")[0] in _KNOWN_BY_VERSION:
        return name
    file = getattr(sys.modules.get(name), "__file__", None)
    try:
        state = os.stat(file or "")  # noqa: PTH116 - asked for every module of a network
        return _hash_file(str(file), state.st_size, state.st_mtime_ns)
    except OSError:  # typed in at a prompt, or gone since
        return name


@functools.lru_cache(maxsize=1024)
def _hash_file(path: str, size: int, changed_at: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32]
