"""Tensors in safetensors files, each made when it is first asked for.

In:  the path of a file, checked by the safetensors library
Out: tensors by name over the mapped file, none of it copied; their shapes and types without making any
Nothing here knows a network. A search reads many near-copies of one network: of most of these it needs a tenth of the tensors,
and making all of them, tens of thousands of Python objects, took longer than running the networks.
"""

import functools
import json
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from modelhound.errors import ModelError

__all__ = ["FileTensors", "TensorPlace", "open_tensors", "read_header"]

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where in its file a tensor lies, and what it is."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    """Of its first byte, from the beginning of the file."""
    stop: int


def read_header(content: memoryview) -> Mapping[str, TensorPlace]:
    """The tensors of a file's content, in the order of its header.

    Raises ValueError for content that is no safetensors file, or holds numbers of a type that torch does not have.
    """
    data_start = 8 + int.from_bytes(content[:8], "little")
    return _read_header(bytes(content[8:data_start]), data_start, len(content))


@functools.lru_cache(maxsize=16)  # near-copies of a network have the same, and each is asked for twice
def _read_header(text: bytes, data_start: int, num_bytes: int) -> Mapping[str, TensorPlace]:
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        return MappingProxyType({name: _place(name, entry, data_start, num_bytes) for name, entry in header.items()})
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"the header is none of a safetensors file ({type(error).__name__}: {error})") from error


def _place(name: str, entry: Mapping[str, Any], data_start: int, num_bytes: int) -> TensorPlace:
    first, stop = entry["data_offsets"]
    dtype, shape = _DTYPES.get(entry["dtype"]), tuple(entry["shape"])
    if dtype is None:
        raise ValueError(f"{name} is of type {entry['dtype']}, which torch does not have")
    if not 0 <= first <= stop <= num_bytes - data_start or stop - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name} is cut off")
    return TensorPlace(dtype, shape, data_start + first, data_start + stop)


def open_tensors(paths: Sequence[Path]) -> "FileTensors":
    """The tensors of all these files together."""
    places = {}
    for path in paths:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
            memoryview(content) as view,
        ):
            places[path] = read_header(view)
    return FileTensors(places)


class FileTensors(Mapping[str, Tensor]):
    """The tensors of one model; the files in `paths` hold these and no others."""

    def __init__(self, places: Mapping[Path, Mapping[str, TensorPlace]]) -> None:
        self.paths = tuple(places)
        self.headers = tuple(places.values())
        """Of each file; the very same for files of the same header, which `read_header` remembers."""
        self._sizes = {path: max((each.stop for each in own.values()), default=0) for path, own in places.items()}
        self._places = {name: (path, place) for path, own in places.items() for name, place in own.items()}
        self._files: dict[tuple[Path, torch.dtype], Tensor] = {}
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self._make(*self._places[name])
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        return name in self._places  # a Mapping's own way is to make the tensor and see

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def place(self, name: str) -> TensorPlace:
        """What a tensor is, without making it."""
        return self._places[name][1]

    def check_whole(self) -> None:
        """Refuse files that were cut short since: the system ends a process that looks at what is no longer there."""
        for path, num_bytes in self._sizes.items():
            # one that is deleted stays readable where it is mapped
            if path.exists() and path.stat().st_size < num_bytes:
                raise ModelError(
                    f"cannot read weights from {path.name!r}: expected the {num_bytes} bytes that it had, somebody has cut "
                    "it short in the meantime; start again when it is whole"
                )

    def _make(self, path: Path, place: TensorPlace) -> Tensor:
        if place.start == place.stop:
            return torch.empty(place.shape, dtype=place.dtype)
        if place.start % place.dtype.itemsize:  # not every writer cares where numbers begin
            with path.open("rb") as file:
                file.seek(place.start)
                content = bytearray(file.read(place.stop - place.start))
            return torch.frombuffer(content, dtype=place.dtype).reshape(place.shape)
        first = place.start // place.dtype.itemsize
        return self._all_of(path, place.dtype)[first : first + math.prod(place.shape)].view(place.shape)

    def _all_of(self, path: Path, dtype: torch.dtype) -> Tensor:
        """A whole file as numbers of one type."""
        if (path, dtype) not in self._files:
            num_numbers = path.stat().st_size // dtype.itemsize
            # not shared: whoever writes into a tensor does not write into the file
            self._files[path, dtype] = torch.from_file(str(path), shared=False, size=num_numbers, dtype=dtype)
        return self._files[path, dtype]
