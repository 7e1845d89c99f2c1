"""From what was asked to points that can be tried: which models, which devices, which sizes, and what each will cost.

In:  LatencySettings and a bench
Out: a SweepPlan: candidates, points and costs; models that cannot be run at all
Nothing here times a network. A size that was asked for and that a model does not take is an error before anything runs; a size
that nobody asked for is left out.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import msgspec

from modelhound import __version__
from modelhound.errors import ModelError, RequestError
from modelhound.meter import installed_version, resolve_device
from modelhound.models import ModelRef, check_arch, find_models, source_of, stamp_own
from modelhound.models.published import is_published
from modelhound.models.where import parse_where
from modelhound.records import Cost, Failure, LatencyPoint, Progress, Watch, silent
from modelhound.settings import LATENCY_MODELS, LatencySettings
from modelhound.store import Memo
from modelhound.timing.axes import Candidate, describe_base, list_points, sizes_of, too_long
from modelhound.timing.bench import Bench
from modelhound.timing.sketching import Sketched
from modelhound.timing.subject import describe_subject

__all__ = ["SweepPlan", "find_devices", "plan_sweep"]

_FIXED_SOURCES = ("zoo", "timm", "tv")
_PACKAGES = ("torch", "torchvision", "timm", "transformers")


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is going to be measured."""

    candidates: dict[str, Candidate]
    points: tuple[LatencyPoint, ...]
    costs: dict[tuple[str, int], Cost]
    """(model, size) -> what one item costs."""
    broken: tuple[Failure, ...]

    @property
    def stamps(self) -> dict[str, str]:
        """Model -> the stamp of its files as they are now."""
        return {name: candidate.stamp for name, candidate in self.candidates.items()}


def find_devices(settings: LatencySettings) -> dict[str, tuple[str, ...]]:
    """Device -> precisions to use there."""
    devices = tuple(dict.fromkeys(resolve_device(device) for device in settings.device))
    found = {}
    for device in devices:
        on_gpu = device.startswith("cuda")
        precisions = settings.precision
        if precisions == ("auto",):
            precisions = ("fp32", "bf16") if on_gpu else ("fp32",)
        for precision in ("tf32", "fp32-strict"):
            if not on_gpu and precision in precisions:
                raise RequestError(
                    f"cannot use --precision {precision} on a CPU: expected fp32, bf16 or fp16, "
                    "since only NVIDIA's GPUs round fp32 to tf32"
                )
        found[device] = precisions
    return found


def plan_sweep(
    settings: LatencySettings,
    devices: dict[str, tuple[str, ...]],
    bench: Bench,
    *,
    sketch_on: str | None = None,
    watch: Watch = silent,
) -> SweepPlan:
    """Look at every model without running it, in the process of the first device unless told of another."""
    candidates, broken = _describe(_find(settings, watch), settings)
    points = list_points(tuple(candidates.values()), settings, precisions=devices) if candidates else []
    broken += [
        Failure(model=model, phase=f"{size} tokens", error=f"cannot be timed: {why}")
        for model, size, why in too_long(tuple(candidates.values()), settings)
    ]
    memo = Memo(f"operator-kinds-{'-'.join(installed_version(name) for name in _PACKAGES)}-{__version__}")
    first_device = sketch_on or next(iter(devices))
    costs: dict[tuple[str, int], Cost] = {}
    for done, candidate in enumerate(candidates.values()):
        watch(Progress(task="looking at models", done=done, total=len(candidates), detail=candidate.model))
        sizes = sizes_of(points, candidate.model)
        known = _recall(memo, candidate, sizes, settings)
        missing = tuple(size for size in sizes if size not in known)
        if missing:
            sketched = bench.sketch(first_device, candidate, missing)
            broken += _judge(sketched, candidate, settings, is_alone=len(candidates) == 1)
            known |= sketched.costs
            _note(memo, candidate, sketched.costs, settings)
        costs |= {(candidate.model, size): cost for size, cost in known.items()}
    watch(Progress(task="looking at models", done=len(candidates), total=len(candidates)))
    kept = tuple(point for point in points if (point.model, point.size) in costs)
    return SweepPlan(candidates=candidates, points=kept, costs=costs, broken=tuple(broken))


def _find(settings: LatencySettings, watch: Watch) -> tuple[ModelRef, ...]:
    """The models asked for; those whose shape is known here are not looked up at the hub."""
    patterns = tuple(name for each in settings.models for name in (LATENCY_MODELS if each == "auto" else (each,)))
    found: dict[ModelRef, None] = {}
    for pattern in patterns:
        model = ModelRef.parse(pattern)
        if settings.weights == "random" and is_published(model):
            found[model] = None
        else:
            found |= dict.fromkeys(find_models((pattern,), watch=watch))
    check_arch(settings.arch, found)
    if settings.where is None:
        return tuple(found)
    holds = parse_where(settings.where)
    kept = tuple(
        model
        for model in found
        if holds.decide({"model": str(model), **source_of(model).glance(model.name)}) is not False
        and holds(describe_subject(model, weights=settings.weights))
    )
    if not kept:
        raise RequestError(f"cannot find a model: --where {settings.where!r} holds for none of {len(found)}, widen it")
    return kept


def _describe(models: Sequence[ModelRef], settings: LatencySettings) -> tuple[dict[str, Candidate], list[Failure]]:
    candidates, broken = {}, []
    for model in models:
        try:
            card = describe_subject(model, weights=settings.weights)
        except ModelError as error:
            broken.append(Failure(model=str(model), phase="describe", error=str(error)))
            continue
        side = min(card.input_size) if card.input_size else None
        candidates[str(model)] = Candidate(
            model=str(model),
            modality=card.modality,
            own_size=describe_base(card.modality, side, card.max_tokens),
            max_tokens=card.max_tokens,
            stamp=stamp_own(model, settings.model_settings()),
        )
    return candidates, broken


def _judge(sketched: Sketched, candidate: Candidate, settings: LatencySettings, *, is_alone: bool) -> list[Failure]:
    """Tell of sizes that were asked for and are not taken, which is a mistake where no other model is timed; one that takes
    none, not even its own, is broken."""
    if sketched.broken:
        return [Failure(model=candidate.model, phase="forward", error=sketched.broken)]
    asked = settings.sizes("image" if candidate.modality == "image" else "sequence")
    failures = []
    for size, why in sketched.refused.items():
        if size in asked:
            unit = "pixels" if candidate.modality == "image" else "tokens"
            taken = ", ".join(str(each) for each in sketched.taken) or f"its own, {candidate.own_size}"
            rule = f"expected a size it takes, such as {taken}; it says: {why}"
            if is_alone:
                raise RequestError(f"cannot time {candidate.model} at {size} {unit}: {rule}")
            failures.append(Failure(model=candidate.model, phase=f"{size} {unit}", error=f"cannot be timed: {rule}"))
    return failures


def _recall(memo: Memo, candidate: Candidate, sizes: Sequence[int], settings: LatencySettings) -> dict[int, Cost]:
    if not _is_fixed(candidate, settings):
        return {}
    known: dict[int, Cost] = {}
    for size in sizes:
        fact: Any = memo.look_up(f"{candidate.model} {size}")
        # an older state of this version may have kept something else
        with contextlib.suppress(msgspec.ValidationError):
            known |= {} if fact is None else {size: msgspec.convert(fact, Cost)}
    return known


def _note(memo: Memo, candidate: Candidate, costs: dict[int, Cost], settings: LatencySettings) -> None:
    if _is_fixed(candidate, settings):
        for size, cost in costs.items():
            memo.note(f"{candidate.model} {size}", msgspec.to_builtins(cost))


def _is_fixed(candidate: Candidate, settings: LatencySettings) -> bool:
    """Whether a name stands for the same network as long as no package changes."""
    model = ModelRef.parse(candidate.model)
    return model.source in _FIXED_SOURCES or (settings.weights == "random" and is_published(model))
