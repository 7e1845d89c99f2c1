"""Read the pickles of CIFAR's "python version" without running anything that is in them.

In:  the path of a pickle
Out: a dict with text keys; values are lists, texts, numbers and uint8 arrays
A pickle is a program: it may name any function and have it called. Here it can name only those that numpy's arrays are made
by, and gets stand-ins for them that check what they are given before any memory is made an array.
Nothing here knows what the keys mean.
"""

import math
import pickle
import pickletools
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from modelhound.data.source import printable
from modelhound.errors import DataError

__all__ = ["load_plain_pickle"]


def load_plain_pickle(path: Path) -> dict[str, Any]:
    """The dict in the pickle; one that asks for anything but plain data is a DataError."""
    try:
        with path.open("rb") as file:
            _check_places(file)
            loaded = _PlainUnpickler(file, encoding="bytes").load()
    except _RefusedError as error:
        raise DataError(
            f"cannot read {printable(str(path))!r}: expected numbers, texts and arrays only, but this pickle asks for "
            f"{error}, which could run code; do not trust it, fetch CIFAR again, best its binary version"
        ) from error
    except Exception as error:
        # a damaged pickle raises nearly anything: EOFError, ValueError, MemoryError, IndexError, …
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"cannot read {printable(str(path))!r}: expected a pickle of CIFAR, but {reason[:200]}; fetch it again"
        ) from error
    if not isinstance(loaded, dict):
        raise DataError(f"cannot use {printable(str(path))!r}: expected a dict, as in CIFAR's pickles; fetch it again")
    return {_text(key): _plain(value) for key, value in loaded.items()}


def _check_places(file: BinaryIO) -> None:
    """A pickle numbers what it will name again, and memory is made for as many as the number says, however large it is.

    Whoever writes pickles counts from 0, or from 1 as Python 2 did.
    """
    num_kept = 0
    for operation, argument, _ in pickletools.genops(file):
        if operation.name in _KEEPING:
            if isinstance(argument, int) and argument > num_kept + 1:
                raise ValueError(f"it keeps object {argument} before there are as many")
            num_kept += 1
    file.seek(0)


_KEEPING = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")


class _RefusedError(pickle.UnpicklingError):
    """The pickle wants something that is not plain data."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        place = (module.replace("numpy._core", "numpy.core"), name)
        if place not in _STAND_INS:
            raise _RefusedError(f"{module}.{name}"[:100])
        return _Callable(_STAND_INS[place])

    def persistent_load(self, pid: object) -> Any:
        raise _RefusedError("an object outside of it")


class _Callable:
    """Can be called by a pickle, and nothing else: no attributes to set, no state to take."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setstate__(self, state: object) -> None:
        raise _RefusedError("changes to a function")


class _Dtype:
    """Stands for a numpy dtype; only that of bytes can be used."""

    __slots__ = ("code",)

    def __init__(self, code: object) -> None:
        self.code = _text(code)

    def __setstate__(self, state: object) -> None:
        """Byte order and the like, which bytes do not have."""


class _Array:
    """Stands for an array until its state comes."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values: npt.NDArray[np.uint8] | None = None

    def __setstate__(self, state: tuple[object, ...]) -> None:
        _, shape, dtype, by_columns, content = state
        self.fill(content, dtype, shape, by_columns)

    def fill(self, content: Any, dtype: object, shape: Any, by_columns: object) -> None:
        if not isinstance(dtype, _Dtype) or dtype.code not in ("u1", "|u1", "uint8"):
            raise _RefusedError("an array of something else than bytes")
        content = content.encode("latin1") if isinstance(content, str) else content
        if not isinstance(content, bytes | bytearray):  # of a number, bytes() would make as many
            raise ValueError("an array is made of something else than bytes")
        if not isinstance(shape, tuple) or len(content) != math.prod(shape):
            raise ValueError("an array has more or fewer bytes than its shape")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if by_columns else "C")


def _reconstruct(*ignored: object) -> _Array:
    return _Array()


def _from_buffer(content: object, dtype: object, shape: object, order: object) -> _Array:
    array = _Array()
    array.fill(content, dtype, shape, _text(order) == "F")
    return array


def _encode(text: object, encoding: object) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if not isinstance(text, str) or _text(encoding) != "latin1":
        raise _RefusedError("an unusual encoding")
    return text.encode("latin1")


_STAND_INS: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _from_buffer,
    ("numpy", "ndarray"): _reconstruct,
    ("numpy", "dtype"): lambda code, *ignored: _Dtype(code),
    ("_codecs", "encode"): _encode,
}


def _plain(value: object) -> Any:
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, list):
        return [_text(each) if isinstance(each, bytes) else each for each in value]
    return value


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
