"""Many tensors to a device in a few large copies.

In:  tensors on the host, which may lie in mapped files, each with a template: the type and order in memory that is wanted
Out: the same numbers on the device, in that type and order
Nothing here knows what they are for.

To bring tensors one by one costs each of them a conversion on the host, a copy from memory that the device cannot read by
itself, and a wait for it: for the thousand tensors of a ResNet-152 nearly a second. Here they are laid side by side into pinned
memory, copied at once, and converted by the device.
"""

import functools
import threading
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

__all__ = ["Staging", "staging_for"]

_PIECE_BYTES = 32 << 20
_NUM_PIECES = 2  # one is filled while the other is copied
_ALIGNED = 16  # bytes: of the largest type of number


@functools.lru_cache(maxsize=16)
def staging_for(device: str) -> "Staging":
    """The one of this process: to pin memory takes a while, so it is done once."""
    return Staging(device)


class Staging:
    """Brings tensors to one device, on a stream of its own. Threads take turns."""

    def __init__(self, device: str, *, piece_bytes: int = _PIECE_BYTES) -> None:
        self._device, self._piece_bytes = torch.device(device), piece_bytes
        self._alone = threading.Lock()
        on_cuda = self._device.type == "cuda"
        self._pieces = [torch.empty(piece_bytes, dtype=torch.uint8, pin_memory=on_cuda) for _ in range(_NUM_PIECES)]
        self._stream = torch.cuda.Stream(device) if on_cuda else None  # type: ignore[no-untyped-call]

    def bring(self, tensors: Sequence[Tensor], templates: Sequence[Tensor]) -> list[Tensor]:
        """All of them, ready to be used on any stream; whoever does must say so (`record_stream`) before letting go."""
        with self._alone, torch.no_grad(), torch.cuda.stream(self._stream):
            try:
                return list(self._bring(tensors, templates))
            finally:
                # also where memory did not suffice: the pieces are filled again afterwards
                if self._stream is not None:
                    self._stream.synchronize()

    def _bring(self, tensors: Sequence[Tensor], templates: Sequence[Tensor]) -> Iterator[Tensor]:
        copied: list[torch.cuda.Event | None] = [None] * _NUM_PIECES
        there = torch.empty(min(self._piece_bytes, _room(tensors)), dtype=torch.uint8, device=self._device)
        begin, turn = 0, 0
        while begin < len(tensors):
            stop = self._fill_up(tensors, begin)
            if stop == begin:  # too large for one piece: there are few of those, and each is worth a copy of its own
                yield self._like(templates[begin]).copy_(tensors[begin])
                begin += 1
                continue
            event = copied[turn]
            if event is not None:
                event.synchronize()  # what was in this piece before has left it
            places = _lay_out(tensors[begin:stop])
            here = self._pieces[turn]
            for tensor, place in zip(tensors[begin:stop], places, strict=True):
                _as_numbers(here[place], tensor).copy_(tensor)
            there[: places[-1].stop].copy_(here[: places[-1].stop], non_blocking=True)
            copied[turn] = self._note_now()
            for tensor, template, place in zip(tensors[begin:stop], templates[begin:stop], places, strict=True):
                yield self._like(template).copy_(_as_numbers(there[place], tensor))
            begin, turn = stop, (turn + 1) % _NUM_PIECES

    def _fill_up(self, tensors: Sequence[Tensor], begin: int) -> int:
        """Up to which tensor one piece has room."""
        used = 0
        for stop in range(begin, len(tensors)):
            used = _aligned(used) + tensors[stop].nbytes
            if used > self._piece_bytes:
                return stop
        return len(tensors)

    def _like(self, template: Tensor) -> Tensor:
        return torch.empty_strided(template.shape, template.stride(), dtype=template.dtype, device=self._device)

    def _note_now(self) -> torch.cuda.Event | None:
        if self._stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event


def _room(tensors: Sequence[Tensor]) -> int:
    return sum(_aligned(tensor.nbytes) for tensor in tensors)


def _lay_out(tensors: Sequence[Tensor]) -> list[slice]:
    """Where each begins and ends, side by side."""
    places, end = [], 0
    for tensor in tensors:
        start = _aligned(end)
        end = start + tensor.nbytes
        places.append(slice(start, end))
    return places


def _aligned(place: int) -> int:
    return -(-place // _ALIGNED) * _ALIGNED


def _as_numbers(place: Tensor, tensor: Tensor) -> Tensor:
    """Some bytes, seen as numbers of the tensor's type in its shape."""
    return place.view(tensor.dtype).view(tensor.shape)
