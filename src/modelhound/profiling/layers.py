"""Layers of a network, as a person counts them.

In:  an Anatomy, whose parts are as small as cuts allow
Out: Layers: where each begins, what the last ones cost and which tensors they need
Nothing here runs anything. A layer is a stretch of parts that multiplies, and not just a little: normalisation, activation and
pooling belong to the layer before them, and so does a small dense layer on top of one token; whatever comes before the first
layer belongs to it. Otherwise the last layer of a residual network would be its pooling, and to run it alone would say
nothing.
"""

import statistics
from dataclasses import dataclass

from modelhound.errors import ModelError
from modelhound.models.parts import Anatomy
from modelhound.settings import LastLayers

__all__ = ["Layers", "find_layers"]

_NOTICEABLE = 1 / 50  # of what the layers of the network usually multiply


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Where each layer begins."""

    model: str
    anatomy: Anatomy
    starts: tuple[int, ...]
    """Number of the first part of each layer."""

    def __len__(self) -> int:
        return len(self.starts)

    def start_of(self, span: LastLayers) -> int:
        """The part with which the last layers asked for begin."""
        count = span.count(len(self))
        if not 1 <= count <= len(self):
            raise ModelError(
                f"cannot run the last {count} layers of {self.model}: expected at most {len(self)}, "
                "which is how many it can be cut into; ask for fewer, or for a share such as 25%"
            )
        return self.starts[-count]

    def tensors(self, first: int, stop: int) -> tuple[str, ...]:
        """Names of what is needed to run parts `first` to `stop` - 1, in the order of the network."""
        needed = {name for part in self.anatomy.parts[first:stop] for name in part.tensors}
        needed |= {name for name in self.anatomy.parts[0].tensors if self._always_used(name)}
        return tuple(name for part in self.anatomy.parts for name in part.tensors if name in needed)

    def flops_per_item(self, first: int, stop: int) -> float:
        return sum(part.flops_per_item for part in self.anatomy.parts[first:stop])

    def _always_used(self, name: str) -> bool:
        """Whether it belongs to no module of a part, or to one that runs however little is asked for, as positions do."""
        muted = {call.path for call in self.anatomy.calls if call.follows_data}
        return not any(name.startswith(f"{path}.") for path in muted)


def find_layers(model: str, anatomy: Anatomy) -> Layers:
    """The layers of a network; one that cannot be cut has one."""
    flops = [part.flops_per_item for part in anatomy.parts]
    least = _NOTICEABLE * statistics.median([each for each in flops if each > 0] or [1.0])
    multiplies = [number for number, each in enumerate(flops) if each >= least]
    return Layers(model=model, anatomy=anatomy, starts=(0, *multiplies[1:]))
