"""Run a network's forward between two of its module calls.

In:  a Network, the calls that one forward makes, and between which two of them something is wanted
Out: what the second of them returns, from what the first returned
Nothing here knows which calls are worth it (see `parts`).

The network's own forward runs from its beginning, but modules that come before the first call are muted: they return a stand-in
of the right shape at once, the first call returns the stored output, and when the second has answered, the forward is left. The
few operations written between modules run as always, and so do modules that do not look at the items, such as those for
positions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from modelhound.models.source import Network

__all__ = ["PROBE_TOKENS", "Call", "Inputs", "Replay", "is_size", "muting", "run_between", "tensor_of"]

Inputs = Tensor | dict[str, Tensor]
"""Images, or the named tensors of a text encoder."""

PROBE_TOKENS = 13
"""How long probing texts are: a number that is hardly ever the width of anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One module call of the forward: its place in the order of calls is its number."""

    path: str
    output: Any
    """What it returned, with a torch.Size in place of each tensor."""
    follows_data: bool
    """Whether that depends on the items at all; if not, it is always run, so that what comes later may use it."""


@contextmanager
def muting(network: Network, calls: Sequence[Call], run: "Replay") -> Iterator[None]:
    # One wrapper for each module, by whichever path: a module that is called twice counts both calls.
    modules = [network.module.get_submodule(path) for path in {call.path for call in calls}]
    own = {module: vars(module).get("forward") for module in modules}
    for module in own:
        module.forward = run.wrap(module.forward)
    try:
        yield
    finally:
        for module, forward in own.items():
            if forward is None:
                del module.forward  # the method of the class shows again
            else:
                module.forward = forward


def run_between(network: Network, run: "Replay", inputs: Inputs, value: Tensor | None) -> Tensor:
    run.start(inputs, value)
    try:
        return network.extract(inputs)
    except _Reached as reached:
        output: Tensor = reached.args[0]
        return output


class _Reached(Exception):  # noqa: N818 - not an error: the way out of a forward that has done enough
    """The part is done; carries its output."""


class Replay:
    """Counts calls, and answers those that come before `begin` without work."""

    def __init__(
        self, calls: Sequence[Call], num_items: int, *, begin: int, end: int, placeholder: float, writable: bool
    ) -> None:
        self._calls, self._probe_items, self._begin, self._end = calls, num_items, begin, end
        self._placeholder, self._writable = placeholder, writable
        self._number = -1
        self._value: Tensor | None = None
        self._blank: Tensor | None = None
        self._num_items = self._num_tokens = 0
        self._stand_ins: dict[int, Any] = {}  # by number of call; batches of one shape share them

    def start(self, inputs: Inputs, value: Tensor | None) -> None:
        self._number = -1
        self._value = value
        first = inputs if isinstance(inputs, Tensor) else next(iter(inputs.values()))
        shape = (len(first), 0 if isinstance(inputs, Tensor) else first.shape[1])
        if self._blank is None or shape != (self._num_items, self._num_tokens):
            # one number that stands in for every tensor: to make one for each would start a kernel for each
            self._blank = None if value is None else value.new_full((1,), self._placeholder)
            self._num_items, self._num_tokens = shape
            self._stand_ins.clear()

    def wrap(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        def answer(*arguments: Any, **options: Any) -> Any:
            self._number += 1
            if self._number < self._begin and self._calls[self._number].follows_data:
                if self._number not in self._stand_ins:
                    output = self._calls[self._number].output
                    self._stand_ins[self._number] = tree_map(self._stand_in, output, is_leaf=is_size)
                return self._stand_ins[self._number]
            if self._number == self._begin:
                output = self._calls[self._number].output
                return self._value if is_size(output) else (self._value, *output[1:])
            output = forward(*arguments, **options)
            if self._number == self._end:
                raise _Reached(tensor_of(output))
            return output

        return answer

    def _stand_in(self, output: Any) -> Any:
        """A tensor that takes no memory if it can, in place of one of this size; anything else as it is."""
        if not is_size(output):
            return output
        assert self._blank is not None
        sizes = [self._num_tokens if self._num_tokens and each == PROBE_TOKENS else each for each in output]
        if sizes and sizes[0] == output[0] and output[0] % self._probe_items == 0:
            sizes[0] = output[0] // self._probe_items * self._num_items  # some networks have several rows per item
        blank = self._blank.expand(sizes)
        return blank.clone() if self._writable else blank


def tensor_of(output: Any) -> Tensor | None:
    """The one tensor a module returns, alone or as the first of a tuple of nothing else."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return output[0] if all(each is None for each in output[1:]) else None
    return None


def is_size(output: Any) -> bool:
    return isinstance(output, torch.Size)
