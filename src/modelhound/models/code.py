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

import torch
from torch import Tensor, nn

from modelhound.models.tensor_hashes import hash_tensor

__all__ = ["LIBRARIES", "name_class", "name_function"]

LIBRARIES = ("torch", "timm", "transformers", "torchvision")
_KNOWN_BY_VERSION = frozenset({*LIBRARIES, "modelhound", *sys.stdlib_module_names})
_SIMPLE = (bool, int, float, str)
_EMPTY = types.CellType()


def name_class(kind: type) -> str:
    """The class, and the files of those that it is made from."""
    return " ".join([kind.__qualname__, *dict.fromkeys(_name_module(each.__module__) for each in kind.__mro__)])


def name_function(function: Callable[..., Any]) -> str:
    """The function, its file, and what it was made with: settings, tensors, and other functions."""
    held: list[Any] = []
    if isinstance(function, functools.partial):
        held, function = [*function.args, *function.keywords.items()], function.func
    if not hasattr(function, "__qualname__"):
        return f"{name_class(type(function))} {_tell([held, _settings_of(function)])}"
    held += [cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell != _EMPTY]
    held += [
        *(getattr(function, "__defaults__", None) or ()),
        *(getattr(function, "__kwdefaults__", None) or {}).items(),
    ]
    held += _settings_of(getattr(function, "__self__", None))
    return f"{function.__qualname__} {_name_module(function.__module__ or '')} {_tell(held)}"


def _settings_of(holder: Any) -> list[tuple[str, Any]]:
    """What an object that is called, or has the method that is, was made with; of modules and classes others know."""
    is_told = isinstance(holder, nn.Module | types.ModuleType | type)
    return [] if is_told else sorted(getattr(holder, "__dict__", {}).items())


def _tell(value: Any) -> str:
    """As text; of functions and objects only what they are called, since they may hold anything, themselves among that."""
    if isinstance(value, _SIMPLE):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_tell, value))}]"
    if isinstance(value, dict):
        return f"[{', '.join(sorted(f'{_tell(name)}: {_tell(each)}' for name, each in value.items()))}]"
    if isinstance(value, functools.partial):
        return _tell([value.func, value.args, value.keywords])
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.layout is torch.strided:
        return hash_tensor(value)  # weights are known beside, and near-copies differ in them
    return str(getattr(value, "__qualname__", type(value).__qualname__))


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
