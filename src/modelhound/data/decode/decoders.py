"""From the bytes of image files to upright 8-bit RGB pixels, by whichever decoder is fastest here and right.

In:  the bytes of some files, and the device that shall hold the pixels
Out: PIL images from decoders on the host, uint8 tensors [3, height, width] from decoders on a CUDA device
Nothing here knows a data set or a model. Every decoder gives what `images.decode_image` gives: to the last bit on the host;
on a device within a grey level or so, on average, since nvJPEG rounds in other places.

Nobody is believed. A decoder is offered if it loads, and is used for those kinds of JPEG that it gets right (`trusting`). All
other files, and those whose head says anything unusual, go through Pillow, one by one. Which of the rest is taken is measured.
"""

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.compat import torchvision_ops_available
from modelhound.data.decode.trusting import find_trusted
from modelhound.data.images import decode_image
from modelhound.data.jpeg_heads import JpegKind, read_head, turn_upright
from modelhound.data.source import UnreadableItemError
from modelhound.errors import is_out_of_memory
from modelhound.meter import seconds_now

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Choice", "Decoder", "choose_decoder", "find_decoders"]

_DEVICE_TOLERANCE = 4.0  # grey levels, on average over an image: wrong colours are further off, coarser chroma is not
_MEASURED_FILES = 8
_MEASURED_PIXELS = 1 << 22  # more would take seconds, with photographs fresh from a camera
# 16 threads decoded and resized five times what one did (benchmarks/results/engine_log_202611.md), and three fifths of that is
# resizing, which is not measured here and costs a device next to nothing
_WORTH_OF_THREADS = 2
_MEASURED_ROUNDS = 3
_NUM_CHANNELS = 3
_DEVICE_BATCH = 64  # so many files at once show what nvJPEG can do

_Pixels = npt.NDArray[np.uint8]

_aside_lock = threading.Lock()


class Decoder(Protocol):
    """Decodes files that may be anything; what cannot be read comes back as an error, in the place of its pixels."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str:
        """Where the pixels are: cpu means PIL images, anything else tensors there."""

    def decode(self, files: Sequence[bytes]) -> "Sequence[Image.Image | Tensor | UnreadableItemError]":
        """One result per file, in order. Safe to call from several threads."""


class _DecodeBatch(Protocol):
    """How torchvision and torchcodec decode many files at once."""

    def __call__(self, encoded: "list[Tensor]", /, *, device: str) -> "list[Tensor]": ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The decoder that was the fastest on some of the user's own files."""

    decoder: Decoder
    files_per_second: Mapping[str, float]
    """By decoder, as measured; what was measured with one thread counts as many times as there are threads of use."""


def find_decoders(device: str = "cpu") -> tuple[Decoder, ...]:
    """What works on this machine and may serve `device`, Pillow first. Found out once per process."""
    simplejpeg = _find_simplejpeg()
    on_host: tuple[Decoder, ...] = (_Pillow(),) if simplejpeg is None else (_Pillow(), simplejpeg)
    return on_host if device == "cpu" else (*on_host, *_find_device_decoders(device))


def choose_decoder(files: Sequence[bytes], *, device: str = "cpu", threads: int = 1) -> Choice:
    """Decode some of `files` by every decoder in turn, and take the fastest; on the host also compare with Pillow."""
    some = _take_some(files)
    candidates = [each for each in find_decoders(device) if each.device != "cpu" or _equals_pillow(each, some)]
    if len(candidates) == 1 or not some:
        return Choice(decoder=candidates[0], files_per_second={})
    best: dict[str, float] = {}
    for _ in range(_MEASURED_ROUNDS):  # interleaved, so that a busy moment does not hit one alone
        for each in candidates:
            best[each.name] = max(best.get(each.name, 0.0), _measure(each, some, threads))
    fastest = max(candidates, key=lambda each: best[each.name])
    return Choice(decoder=fastest, files_per_second=best)


def _take_some(files: Sequence[bytes]) -> list[bytes]:
    some: list[bytes] = []
    num_pixels = 0
    for data in files[:: max(1, len(files) // _MEASURED_FILES)][:_MEASURED_FILES]:
        head = read_head(data)
        num_pixels += head.size[0] * head.size[1] if head is not None else 0
        if some and num_pixels > _MEASURED_PIXELS:
            break
        some.append(data)
    return some


def _equals_pillow(decoder: Decoder, files: Sequence[bytes]) -> bool:
    return all(
        isinstance(plain, UnreadableItemError)
        or (isinstance(fast, Image.Image) and fast.tobytes() == plain.tobytes() and fast.size == plain.size)
        for fast, plain in zip(decoder.decode(files), _Pillow().decode(files), strict=True)
    )


def _measure(decoder: Decoder, files: list[bytes], threads: int) -> float:
    if decoder.device == "cpu":
        start = seconds_now()
        decoder.decode(files)
        return len(files) * min(threads, _WORTH_OF_THREADS) / (seconds_now() - start)
    import torch

    many = (files * (_DEVICE_BATCH // len(files) + 1))[:_DEVICE_BATCH]
    stream = torch.cuda.current_stream(decoder.device)  # and not the device, where others are at work
    stream.synchronize()
    start = seconds_now()
    decoder.decode(many)
    stream.synchronize()
    return len(many) / (seconds_now() - start)


@dataclass(frozen=True, slots=True)
class _Pillow:
    """Reads everything; what every other decoder is held to."""

    name: str = "Pillow"
    device: str = "cpu"

    def decode(self, files: Sequence[bytes]) -> "list[Image.Image | UnreadableItemError]":
        return [_decode_plainly(data) for data in files]


def _decode_plainly(data: bytes) -> Image.Image | UnreadableItemError:
    try:
        return decode_image(data)
    except UnreadableItemError as error:
        return error


@dataclass(frozen=True, slots=True)
class _OnHost:
    """libjpeg-turbo without Pillow's way through its own image format."""

    name: str
    trusted: frozenset[JpegKind] = field(repr=False)
    decode_one: Callable[[bytes], _Pixels] = field(repr=False)
    device: str = "cpu"

    def decode(self, files: Sequence[bytes]) -> "list[Image.Image | UnreadableItemError]":
        return [self._decode(data) for data in files]

    def _decode(self, data: bytes) -> Image.Image | UnreadableItemError:
        head = read_head(data)
        if head is None or head.kind not in self.trusted:
            return _decode_plainly(data)
        try:
            pixels = self.decode_one(data)
        except Exception:  # it is strict where Pillow is lenient, and Pillow decides
            return _decode_plainly(data)
        return Image.fromarray(np.ascontiguousarray(turn_upright(pixels, head.orientation, rows=0, columns=1)))


@dataclass(frozen=True, slots=True)
class _OnDevice:
    """nvJPEG, a batch at a time."""

    name: str
    device: str
    trusted: frozenset[JpegKind] = field(repr=False)
    decode_batch: "_DecodeBatch" = field(repr=False)

    def decode(self, files: Sequence[bytes]) -> "Sequence[Image.Image | Tensor | UnreadableItemError]":
        if self.device == "cpu":
            return self._decode_all(files)
        import torch

        # nvJPEG writes on a stream of its own and does not wait for work that is still to be done on ours. So its results
        # must not lie in memory that ours has just let go of, which those that belong to another stream never do.
        aside, current = _stream_aside(self.device), torch.cuda.current_stream(self.device)
        with _aside_lock:
            aside.synchronize()
            with torch.cuda.stream(aside):
                decoded = self._decode_all(files)
            current.wait_stream(aside)
        for each in decoded:
            if isinstance(each, torch.Tensor):
                each.record_stream(current)
        return decoded

    def _decode_all(self, files: Sequence[bytes]) -> "list[Tensor | UnreadableItemError]":
        heads = [read_head(data) for data in files]
        by_kind: dict[JpegKind, list[int]] = {}
        for place, (data, head) in enumerate(zip(files, heads, strict=True)):
            # nvJPEG fills up what a broken-off file lacks and says nothing
            if head is not None and head.kind in self.trusted and data.endswith(b"\xff\xd9"):
                by_kind.setdefault(head.kind, []).append(place)
        found: dict[int, Tensor | None] = {}
        for kind, fit in by_kind.items():
            if kind.num_components == _NUM_CHANNELS:  # grey pictures of some sizes come out wrong (torchvision 0.26)
                found.update(zip(fit, self._decode_fit([files[place] for place in fit]), strict=True))
        return [self._finish(data, heads[place], found.get(place)) for place, data in enumerate(files)]

    def _decode_fit(self, files: list[bytes]) -> "list[Tensor | None]":
        if not files:
            return []
        encoded = [_as_tensor(data) for data in files]
        try:
            return list(self.decode_batch(encoded, device=self.device))
        except RuntimeError as error:  # one bad file spoils the batch
            if is_out_of_memory(error):
                raise
            return [self._decode_alone(each) for each in encoded]

    def _decode_alone(self, encoded: "Tensor") -> "Tensor | None":
        try:
            return self.decode_batch([encoded], device=self.device)[0]
        except RuntimeError:
            return None

    def _finish(self, data: bytes, head: Any, pixels: "Tensor | None") -> "Tensor | UnreadableItemError":
        import torch

        if pixels is None:
            plain = _decode_plainly(data)
            if isinstance(plain, UnreadableItemError):
                return plain
            return torch.from_numpy(np.array(plain)).permute(2, 0, 1).to(self.device)
        colours = pixels.expand(3, -1, -1) if pixels.shape[0] == 1 else pixels
        turned: Tensor = turn_upright(colours, head.orientation, rows=1, columns=2)
        return turned


@lru_cache(maxsize=16)
def _stream_aside(device: str) -> "torch.cuda.Stream":
    import torch

    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _as_tensor(data: bytes) -> "Tensor":
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)  # a copy: torch warns of memory it may not write to


@lru_cache(maxsize=1)
def _find_simplejpeg() -> Decoder | None:
    try:
        simplejpeg = importlib.import_module("simplejpeg")
    except (ImportError, OSError, RuntimeError):  # not there, or its compiled part does not load
        return None

    def decode_one(data: bytes) -> _Pixels:
        pixels: _Pixels = simplejpeg.decode_jpeg(data, "RGB")
        return pixels

    trusted = find_trusted(lambda files: [decode_one(data) for data in files], tolerance=0.0)
    return _OnHost("simplejpeg", trusted, decode_one) if trusted else None


@lru_cache(maxsize=8)
def _find_device_decoders(device: str) -> tuple[Decoder, ...]:
    import torch

    if not torch.cuda.is_available():
        return ()
    found = []
    for name, load in (("nvJPEG by torchvision", _load_torchvision), ("nvJPEG by torchcodec", _load_torchcodec)):
        decode_batch = load()
        if decode_batch is None:
            continue

        def decode_probes(files: list[bytes], decode: Any = decode_batch) -> list[_Pixels]:
            tensors = decode([_as_tensor(data) for data in files], device=device)
            return [each.expand(3, -1, -1).permute(1, 2, 0).cpu().numpy() for each in tensors]

        trusted = find_trusted(decode_probes, tolerance=_DEVICE_TOLERANCE)
        if trusted:
            found.append(_OnDevice(name, device, trusted, decode_batch))
    return tuple(found)


def _load_torchvision() -> "_DecodeBatch | None":
    try:
        if not torchvision_ops_available():
            return None
        library = importlib.import_module("torchvision.io")
        return partial(library.decode_jpeg, mode=library.ImageReadMode.RGB)
    except (ImportError, OSError, RuntimeError, AttributeError):
        return None


def _load_torchcodec() -> "_DecodeBatch | None":
    """torchcodec decodes JPEGs since 0.16, which needs torch 2.11."""
    try:
        return partial(importlib.import_module("torchcodec.decoders").decode_jpeg, mode="RGB")
    except Exception:  # without FFmpeg its libraries do not load, and what it then raises has changed over time
        return None
