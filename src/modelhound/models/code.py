"""Whose code a network runs, and what it was made with.

In:  a class, a function, or anything that one of them holds
Out: a text that names it, and that changes when what it does may have changed
Nothing here runs any of it. The code of libraries is known by their versions, which whoever keeps features knows as well; that
of strangers is known by the files it is written in. What these import from others is not looked at.
"""

import dataclasses
import enum
import functools
import hashlib
import os
import sys
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modelhound.models.tensor_hashes import hash_tensor

__all__ = ["LIBRARIES", "Telling", "is_strangers", "name_class"]

LIBRARIES = ("torch", "timm", "transformers", "torchvision")
_KNOWN_BY_VERSION = frozenset({*LIBRARIES, "modelhound", *sys.stdlib_module_names})
_SIMPLE = (
    *(bool, int, float, complex, str, bytes, slice, range, type(None)),
    *(enum.Enum, np.generic, torch.dtype, torch.device),
)
_EMPTY = types.CellType()
_DEEPEST = 30  # lists in lists, and objects in objects


def name_class(kind: type) -> str:
    """The class, and the files of those that it is made from."""
    return " ".join([kind.__qualname__, *dict.fromkeys(_name_module(each.__module__) for each in kind.__mro__)])


def is_strangers(kind: type) -> bool:
    """Whether a class is of no library that is known by its version."""
    return not _is_known(kind.__module__)


class Telling:
    """Tells of anything that a network holds what decides what it does."""

    def __init__(self, module: nn.Module | None = None) -> None:
        """The tensors of `module`, and of all that it has inside, are known beside: near-copies differ in them."""
        inside: Iterable[Any] = () if module is None else (*module.modules(), *module.parameters(), *module.buffers())
        self._inside = {id(each) for each in inside}
        self._told: dict[int, tuple[int, Any]] = {}  # once each, since anything may hold itself, and what holds it
        self._depth = 0
        self._kinds: dict[type, str] = {}

    def kind(self, kind: type) -> str:
        """A class; of strangers' also what it was made with, where a function made it: others may go by the same name."""
        if kind not in self._kinds:  # hundreds of modules are of the same few
            self._kinds[kind] = name_class(kind)  # a method that calls its parent's closes over the class
            outer = self._told, self._depth
            self._told, self._depth = {}, 0
            told = [self.tell(_made_with(each)) for each in kind.__mro__ if is_strangers(each)]
            self._told, self._depth = outer
            self._kinds[kind] = " ".join([self._kinds[kind], *told])
        return self._kinds[kind]

    def function(self, function: Callable[..., Any]) -> str:
        """The function, its file, and what it was made with: settings, tensors, and other functions."""
        held: list[Any] = []
        if isinstance(function, functools.partial):
            held, function = [*function.args, *function.keywords.items()], function.func
        if not hasattr(function, "__qualname__"):
            return f"{name_class(type(function))} {self.tell([held, _settings_of(function)])}"
        held += _held_by(function)
        owner = getattr(function, "__self__", None)
        held += [owner] if isinstance(owner, nn.Module) else _settings_of(owner)
        return f"{function.__qualname__} {_name_module(function.__module__ or '')} {self.tell(held)}"

    def tell(self, value: Any) -> str:
        """As text; of objects of libraries only what they are called."""
        if isinstance(value, _SIMPLE):
            return repr(value)
        if id(value) in self._told:
            return f"again {self._told[id(value)][0]}"
        if self._depth == _DEEPEST:
            return type(value).__qualname__
        self._told[id(value)] = len(self._told), value  # held, so that nothing else comes to lie there meanwhile
        self._depth += 1
        try:
            return self._tell_held(value)
        finally:
            self._depth -= 1
            if not self._depth:
                self._told.clear()

    def _tell_held(self, value: Any) -> str:
        if isinstance(value, tuple | list):
            return f"[{', '.join(map(self.tell, value))}]"
        if isinstance(value, dict):
            return f"[{', '.join(sorted(f'{self.tell(name)}: {self.tell(each)}' for name, each in value.items()))}]"
        if isinstance(value, set | frozenset):
            return f"[{', '.join(sorted(map(self.tell, value)))}]"
        if isinstance(value, functools.partial):
            return self.tell([value.func, value.args, value.keywords])
        if isinstance(value, np.ndarray):
            content = value.tolist() if value.dtype.hasobject else hashlib.sha256(value.tobytes()).hexdigest()
            return self.tell([str(value.dtype), value.shape, content])
        if isinstance(value, Tensor | nn.Module):
            return self._tell_weights(value)
        if isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            return value.__qualname__ if _is_known(value.__module__ or "") else self.function(value)
        if isinstance(value, type):
            return self.kind(value)
        if _is_made_by_strangers(type(value)):
            return f"{name_class(type(value))} {self.tell(_settings_of(value))}"
        if callable(value):
            return self.function(value)
        return str(getattr(value, "__qualname__", type(value).__qualname__))

    def _tell_weights(self, value: "Tensor | nn.Module") -> str:
        """What they hold, unless that is known beside."""
        if id(value) in self._inside:
            return type(value).__qualname__
        if isinstance(value, Tensor):
            has_numbers = value.layout is torch.strided and not value.is_meta and not value.is_quantized
            return hash_tensor(value) if has_numbers else type(value).__qualname__
        tensors = (*value.named_parameters(), *value.named_buffers())
        return self.tell([name_class(type(value)), *((name, each.detach()) for name, each in tensors)])


def _settings_of(holder: Any) -> list[tuple[str, Any]]:
    """What an object that is called, or has the method that is, was made with; of modules and classes others know."""
    if isinstance(holder, nn.Module | types.ModuleType | type):
        return []
    if dataclasses.is_dataclass(holder):  # which may have slots
        return [(each.name, getattr(holder, each.name, None)) for each in dataclasses.fields(holder)]
    return sorted(getattr(holder, "__dict__", {}).items())


def _held_by(function: Any) -> list[Any]:
    """What a function was made with: what it closes over, and its defaults."""
    return [
        *(cell.cell_contents for cell in getattr(function, "__closure__", None) or () if cell != _EMPTY),
        *(getattr(function, "__defaults__", None) or ()),
        *(getattr(function, "__kwdefaults__", None) or {}).items(),
    ]


def _made_with(kind: type) -> list[tuple[str, Any]]:
    """Plain values that a class has, and what its methods close over; defaults stand in its file."""
    plain = ((name, each) for name, each in vars(kind).items() if not name.startswith("__"))
    methods = ((name, getattr(each, "__func__", each)) for name, each in vars(kind).items())
    return sorted(
        [
            *((name, each) for name, each in plain if isinstance(each, (*_SIMPLE, tuple, list, dict, Tensor))),
            *((name, _held_by(each)) for name, each in methods if getattr(each, "__closure__", None)),
        ],
        key=lambda named: named[0],
    )


def _is_made_by_strangers(kind: type) -> bool:
    """Whether no class that it is made from is a library's: objects of those hold what does not matter, such as their place."""
    return all(map(is_strangers, kind.__mro__[:-1])) or kind is types.SimpleNamespace


def _is_known(module: str) -> bool:
    return module.partition(".")[0] in _KNOWN_BY_VERSION


def _name_module(name: str) -> str:
    if _is_known(name):
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
