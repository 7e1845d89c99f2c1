"""Which points a sweep has, and in which order.

In:  what was asked, and what each model takes: images or texts, its own size, how many tokens at most
Out: points, and an order in which no model, size or device comes first
Nothing here runs anything.

Axes that were named are combined. One that was not stays as it is: batch 1, a model's own image size, 128 tokens. Without any,
each axis is swept by itself, the others held: batches at the model's own size, sizes at batch 1 and, on a GPU, at a batch that
fills it, because a GPU that mostly waits says little of how work grows.
"""

import random
from collections.abc import Callable, Iterable, Sequence

import msgspec

from modelhound.errors import RequestError
from modelhound.records import LatencyPoint
from modelhound.settings import LatencySettings
from modelhound.timing.subject import Modality

__all__ = ["Candidate", "describe_base", "list_points", "shuffle_points", "sizes_of", "too_long"]

_BASE_TOKENS = 128
_CPU_BATCHES = (1, 2, 4, 8, 16)
_GPU_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
_CPU_SIDES = (64, 96, 128, 160, 192, 224)
_GPU_SIDES = (64, 96, 128, 160, 192, 224, 288)
_LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_CPU_MOST_TOKENS = 1024
_FULL_BATCH = 32

_NUM_PROBES = 2


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is to be timed, as far as its card tells."""

    model: str
    modality: Modality
    own_size: int
    """The side of the images it was made for; of texts, the length they have unless told."""
    max_tokens: int | None = None
    stamp: str = ""
    """Of a network in somebody's own files, which may be another by the next start."""


def describe_base(modality: Modality, side: int | None, max_tokens: int | None) -> int:
    """The size that stays when its axis is not swept."""
    if modality == "image":
        return side or 224
    return min(_BASE_TOKENS, max_tokens or _BASE_TOKENS)


def list_points(
    candidates: Sequence[Candidate], settings: LatencySettings, *, precisions: dict[str, tuple[str, ...]]
) -> list[LatencyPoint]:
    """Every point once; `precisions` are those of each device."""
    _check_axes(candidates, settings)
    points = [
        _point(candidate, batch, size, precision, device)
        for device in precisions
        for candidate in candidates
        for batch, size in _shapes(candidate, settings, on_gpu=device.startswith("cuda"))
        for precision in precisions[device]
    ]
    return list(dict.fromkeys(points))


def sizes_of(points: Iterable[LatencyPoint], model: str) -> tuple[int, ...]:
    """The sizes one model is timed at, smallest first."""
    return tuple(sorted({point.size for point in points if point.model == model}))


def shuffle_points(
    points: Sequence[LatencyPoint], expected_bytes: Callable[[LatencyPoint], float], *, seed: int
) -> list[LatencyPoint]:
    """A random order, but for two small points of every network, precision and device: they show what memory it takes."""
    groups: dict[tuple[str, str, str], list[LatencyPoint]] = {}
    for point in points:
        groups.setdefault((point.model, point.precision, point.device), []).append(point)
    probes = [point for group in groups.values() for point in sorted(group, key=expected_bytes)[:_NUM_PROBES]]
    first = set(probes)
    rest = [point for point in points if point not in first]
    generator = random.Random(seed)
    generator.shuffle(probes)
    generator.shuffle(rest)
    return [*probes, *rest]


def _check_axes(candidates: Sequence[Candidate], settings: LatencySettings) -> None:
    for axis, modality in (("image", "image"), ("sequence", "text")):
        if settings.sizes(axis) and all(candidate.modality != modality for candidate in candidates):  # type: ignore[arg-type]
            given = ",".join(map(str, settings.sizes(axis)))  # type: ignore[arg-type]
            raise RequestError(
                f"cannot use --{axis} {given}: expected a model of {modality}s among those asked for, leave it out or name one"
            )
    texts = [candidate for candidate in candidates if candidate.modality == "text"]
    refused = too_long(candidates, settings)
    if refused and len(texts) == 1:
        raise RequestError(f"cannot time {texts[0].model} at {refused[0][1]} tokens: {refused[0][2]}")


def too_long(candidates: Sequence[Candidate], settings: LatencySettings) -> list[tuple[str, int, str]]:
    """Models and lengths asked for that they have no positions for, and what to do."""
    return [
        (
            candidate.model,
            length,
            f"expected at most {candidate.max_tokens}, which is what it has positions for; leave the longer ones or the model "
            "out",
        )
        for candidate in candidates
        for length in settings.sizes("sequence")
        if candidate.modality == "text" and candidate.max_tokens is not None and length > candidate.max_tokens
    ]


def _shapes(candidate: Candidate, settings: LatencySettings, *, on_gpu: bool) -> list[tuple[int, int]]:
    batches = settings.sizes("batch")
    sizes = settings.sizes("image" if candidate.modality == "image" else "sequence")
    refused = {size for model, size, _ in too_long((candidate,), settings) if model == candidate.model}
    if refused and refused == set(sizes):
        return []
    sizes = tuple(size for size in sizes if size not in refused)
    if batches or settings.sizes("image") or settings.sizes("sequence"):
        return [(batch, size) for batch in batches or (1,) for size in sizes or (candidate.own_size,)]
    swept = [(batch, candidate.own_size) for batch in (_GPU_BATCHES if on_gpu else _CPU_BATCHES)]
    held = (1, _FULL_BATCH) if on_gpu else (1,)
    swept += [(batch, size) for batch in held for size in _usual_sizes(candidate, on_gpu=on_gpu)]
    return list(dict.fromkeys(swept))


def _usual_sizes(candidate: Candidate, *, on_gpu: bool) -> tuple[int, ...]:
    if candidate.modality == "image":
        return _GPU_SIDES if on_gpu else _CPU_SIDES
    most = candidate.max_tokens or 512
    return tuple(length for length in _LENGTHS if length <= (most if on_gpu else min(most, _CPU_MOST_TOKENS)))


def _point(candidate: Candidate, batch: int, size: int, precision: str, device: str) -> LatencyPoint:
    is_image = candidate.modality == "image"
    return LatencyPoint(
        model=candidate.model,
        batch=batch,
        image=size if is_image else None,
        tokens=None if is_image else size,
        precision=precision,
        device=device,
    )
