"""What networks cost and which sizes they take, found out without running them.

In:  a model and sizes, as JSON values
Out: for each size what one item costs, or why the network does not take it
Nothing here reads a clock. Networks are built on torch's meta device, where tensors have shapes and no values, so even the
largest is gone through in a moment. A network that cannot be built there is built for real.
"""

import contextlib
from typing import Any

import msgspec

from modelhound.errors import ModelError, first_line
from modelhound.models import ModelRef
from modelhound.records import Cost
from modelhound.settings import ModelSettings
from modelhound.timing.subject import Modality, Subject, build_subject

__all__ = ["SketchRequest", "Sketched", "sketch_model"]

_PROBED_SIDES = (16, 28, 32, 48, 56, 64, 96, 112, 128, 160, 192, 224, 256, 288, 299, 320, 384, 448, 512, 518)


class SketchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, and which sizes: sides of images or lengths of texts."""

    model: str
    modality: Modality
    sizes: tuple[int, ...]
    own_size: int
    """A size the model was made for."""
    weights: str
    settings: ModelSettings


class Sketched(msgspec.Struct, frozen=True, kw_only=True):
    """What was found out."""

    costs: dict[int, Cost]
    refused: dict[int, str]
    """Size -> why it is not taken."""
    taken: tuple[int, ...] = ()
    """Where a size was refused: some that are not."""
    broken: str = ""
    """Why the network cannot be run at all, not even at its own size."""


def sketch_model(request: dict[str, Any]) -> Any:
    """The entry for a worker: JSON in, JSON out."""
    asked = msgspec.convert(request, SketchRequest)
    try:
        device = _find_device(asked)
    except Exception as error:  # a stranger's network: anything
        return msgspec.to_builtins(Sketched(costs={}, refused={}, broken=_reason(error)))
    costs: dict[int, Cost] = {}
    refused: dict[int, str] = {}
    for size in asked.sizes:
        try:
            costs[size] = _count(asked, size, device)
        except Exception as error:
            refused[size] = _reason(error)
    taken = _find_taken(asked, device) if refused else ()
    return msgspec.to_builtins(Sketched(costs=costs, refused=refused, taken=taken), str_keys=True)


def _find_device(asked: SketchRequest) -> str:
    """Where the network can be gone through at its own size: on the meta device, else for real, else not at all."""
    try:
        _count(asked, asked.own_size, "meta")
    except ModelError:
        raise
    except Exception:
        _count(asked, asked.own_size, "cpu")
        return "cpu"
    return "meta"


def _find_taken(asked: SketchRequest, device: str) -> tuple[int, ...]:
    """Of the usual sides those that work; none where trying them would take long."""
    taken = []
    for side in _PROBED_SIDES if asked.modality == "image" and device == "meta" else ():
        with contextlib.suppress(Exception):
            _count(asked, side, device)
            taken.append(side)
    return tuple(taken)


def _count(asked: SketchRequest, size: int, device: str) -> Cost:
    import torch

    from modelhound.timing.counting import count_call

    subject = _build(asked, size, device)
    inputs = subject.make_inputs(1, size, device=device, dtype=torch.float32, masked=device != "meta")
    weights = [*subject.module.parameters(), *subject.module.buffers()]
    count = count_call(lambda: subject.call(inputs), weights)
    weight_bytes = subject.weight_bytes
    given = list(inputs.values()) if isinstance(inputs, dict) else [inputs]
    return Cost(
        flops=count.flops,
        activation_bytes=count.activation_bytes,
        moved_bytes=sum(moved * number for _, _, moved, _, number in count.operators),
        live_bytes=count.live_bytes,
        input_bytes=float(sum(tensor.numel() * tensor.element_size() for tensor in given)),
        weight_bytes=float(weight_bytes),
        num_kernels=count.num_kernels,
        num_parameters=subject.num_parameters,
        operators=count.operators,
    )


def _build(asked: SketchRequest, size: int, device: str) -> Subject:
    import torch

    # Weights decide nothing here, so none are read.
    with torch.device(device):
        return build_subject(
            ModelRef.parse(asked.model),
            modality=asked.modality,
            weights="random",
            side=size if asked.modality == "image" else None,
            settings=asked.settings,
        )


def _reason(error: BaseException) -> str:
    """With the type of what a stranger's network raised."""
    text = first_line(error)
    return text if isinstance(error, ModelError) else f"{type(error).__name__}: {text}"[:300]
