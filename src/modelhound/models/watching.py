"""One forward of a network, watched: which modules it calls, what they return, what it costs.

In:  a Network and a small batch of inputs for it
Out: what every call of a watched module returned, the graph that autograd drew, FLOPs and sizes on the way; what modules keep
     of it for the next forward, and how to make them forget
Nothing here knows what follows from it (see `parts`).
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from modelhound.models.calls import Inputs, tensor_of
from modelhound.models.source import Network

__all__ = ["Kept", "Seen", "Watched", "find_kept", "forget", "note_attributes", "observe", "record_outputs"]

_MANY = 8
_OF_ALL_MODULES = frozenset(vars(nn.Module()))
_ABSENT = object()


class Watched:
    """The modules whose calls are counted: elements of lists that hold no list themselves, and what lies beside them."""

    def __init__(self, module: nn.Module) -> None:
        self.paths: dict[str, nn.Module] = {}
        self._descend(module, "")

    def _descend(self, module: nn.Module, path: str) -> None:
        for name, child in module.named_children():
            below = f"{path}.{name}" if path else name
            if _holds_list(child):
                self._descend(child, below)
            else:
                self.paths[below] = child


def _holds_list(module: nn.Module) -> bool:
    """Whether there is a list of blocks inside: two or more modules that are more than one operation, or many operations."""
    return any(
        isinstance(each, nn.Sequential | nn.ModuleList)
        and (len(each) >= _MANY or sum(any(True for _ in element.children()) for element in each) >= 2)
        for each in module.modules()
    )


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one forward showed."""

    paths: list[str]
    outputs: list[Any]
    nodes: list[Any]
    """Of each call: the autograd node of what it returned, or None."""
    flops: list[int]
    """Counted up to the end of each call, and at last in all."""
    largest: list[int]
    """Numbers in the largest tensor made since the call before, and at last since the last call."""
    sources: list[Any]
    result: Tensor
    used: set[int]
    """Where the tensors begin that operations were given."""

    def is_used(self, tensor: Tensor) -> bool:
        """Whether an operation was given this tensor or some of it. Its storage would not tell: all tensors of a mapped file
        share one."""
        begin = tensor.data_ptr()
        return any(begin <= place < begin + tensor.nbytes for place in self.used)


class _Costs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every operation and every tensor that is made.

    torch's FlopCounterMode counts the same by the same formulas, but takes other operations apart where it can, batch norms
    among them, which made the look at EfficientNet-B0 take half as long again.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.used: set[int] = set()
        self._largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        given = tree_leaves((arguments, options))
        self.used.update(each.data_ptr() for each in given if isinstance(each, Tensor))
        made = function(*arguments, **(options or {}))
        formula = flop_registry.get(function._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*arguments, **(options or {}), out_val=made))
        # a view of another, such as a weight, is not made
        is_new = all(each.alias_info is None for each in function._schema.returns)
        for each in made if isinstance(made, tuple | list) else (made,):
            if is_new and isinstance(each, Tensor):
                self._largest = max(self._largest, each.numel())
        return made

    def since_last(self) -> int:
        """The most numbers in one, since this was last asked."""
        largest, self._largest = self._largest, 0
        return largest


def observe(network: Network, watched: Watched, inputs: Inputs) -> Seen:
    """Run the whole forward once with autograd on, and note every watched call."""
    costs = _Costs()
    seen = Seen(
        paths=[], outputs=[], nodes=[], flops=[], largest=[], sources=[], result=torch.empty(0), used=costs.used
    )
    paths = {module: path for path, module in watched.paths.items()}

    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        tensor = tensor_of(output)
        seen.outputs.append(output)
        seen.paths.append(paths[module])
        seen.nodes.append(None if tensor is None else tensor.grad_fn)
        seen.flops.append(costs.flops)
        seen.largest.append(costs.since_last())

    def note_source(module: nn.Module, arguments: Any, output: Tensor) -> None:
        if not isinstance(inputs, Tensor) and _same(arguments[0], inputs["input_ids"]):
            seen.sources.append(output.grad_fn)  # and not one that looks up positions

    hooks = [module.register_forward_hook(note) for module in watched.paths.values()]
    hooks += [
        module.register_forward_hook(note_source)
        for module in network.module.modules()
        if isinstance(module, nn.Embedding) and not isinstance(inputs, Tensor)
    ]
    had_grad = {parameter: parameter.requires_grad for parameter in network.module.parameters()}
    try:
        with torch.enable_grad(), costs:
            for parameter in had_grad:
                parameter.requires_grad_(True)
            if isinstance(inputs, Tensor):
                leaf = inputs.detach().clone().requires_grad_(True)
                copy = leaf * 1  # a network may change its input, but not a leaf
                seen.sources.append(copy.grad_fn)
                seen.result = network.extract(copy)
            else:
                seen.result = network.extract(dict(inputs))
        seen.flops.append(costs.flops)
        seen.largest.append(costs.since_last())
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, wanted in had_grad.items():
            parameter.requires_grad_(wanted)
    return seen


def _same(looked_up: Any, tokens: Tensor) -> bool:
    """Whether these are the tokens; some networks pad them themselves."""
    return (
        isinstance(looked_up, Tensor)
        and looked_up.ndim == tokens.ndim
        and torch.equal(looked_up[:, : tokens.shape[1]], tokens)
    )


def record_outputs(network: Network, watched: Watched, inputs: Inputs) -> list[Tensor | None]:
    """What every call returns in a forward as features are made, without autograd: then other kernels may run.

    The last is what the whole network returns.
    """
    values: list[Tensor | None] = []

    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        tensor = tensor_of(output)
        values.append(None if tensor is None else tensor.clone())  # a later module may change it in place

    hooks = [module.register_forward_hook(note) for module in watched.paths.values()]
    try:
        with torch.no_grad():
            whole = network.extract(_copy(inputs))
    finally:
        for hook in hooks:
            hook.remove()
    return [*values, whole]


def _copy(inputs: Inputs) -> Inputs:
    return inputs.clone() if isinstance(inputs, Tensor) else dict(inputs)


@dataclass(frozen=True, slots=True)
class Kept:
    """An attribute in which a module keeps tensors of one forward for the next, such as a table made of its weights."""

    path: str
    name: str
    before: Any
    """What it held before anything ran; _ABSENT where it was not there."""


def note_attributes(module: nn.Module) -> Mapping[tuple[str, str], Any]:
    """What each module inside has beside parameters, buffers and other modules, by its path and the attribute's name."""
    return {(path, name): _copy_holder(value) for path, name, value in _attributes(module)}


def find_kept(module: nn.Module, before: Mapping[tuple[str, str], Any]) -> tuple[Kept, ...]:
    """The attributes that hold tensors now that they did not hold `before`."""
    kept = []
    for path, name, value in _attributes(module):
        if not isinstance(value, Tensor | dict | list | tuple):
            continue
        was = before.get((path, name), _ABSENT)
        known = {id(each) for each in _tensors_in(was)}
        if any(id(each) not in known for each in _tensors_in(value)):
            kept.append(Kept(path, name, was))
    return tuple(kept)


def forget(module: nn.Module, kept: Sequence[Kept]) -> None:
    """Put back what was there before anything ran."""
    for each in kept:
        attributes = vars(module.get_submodule(each.path))
        if each.before is _ABSENT:
            attributes.pop(each.name, None)
        else:
            attributes[each.name] = _copy_holder(each.before)


def _attributes(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            if name not in _OF_ALL_MODULES:
                yield path, name, value


def _tensors_in(value: Any) -> Iterator[Tensor]:
    """Of lists and mappings, too, which may hold themselves."""
    waiting, looked_into = [value], set()
    while waiting:
        each = waiting.pop()
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, dict | list | tuple) and id(each) not in looked_into:
            looked_into.add(id(each))
            waiting.extend(each.values() if isinstance(each, dict) else each)


def _copy_holder(value: Any) -> Any:
    """Of what may be changed where it is, as it is now."""
    return copy(value) if isinstance(value, dict | list) else value
