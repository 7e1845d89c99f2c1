"""How a limit of memory is divided where a search runs on a CPU, how it is kept, and what is said where it is too low.

In:  the models of a search, taken apart, and how many items it has
Out: bytes that go to everything but the plan, bytes that are left for it, or an error that says what is in the way; memory
     that was freed and goes back to the system before the limit is reached
Nothing here plans or runs. Weights that can be used where they lie, in mapped files, are not counted: the system takes their
memory back whenever it wants to.
"""

import math
from collections.abc import Sequence

from modelhound.analysis.wording import plural
from modelhound.compat import give_back_freed_memory
from modelhound.errors import RequestError
from modelhound.features.shelf import copied_bytes
from modelhound.features.workshop import Specimen
from modelhound.meter import process_bytes
from modelhound.scores import scoring_bytes

__all__ = ["Allowance", "beside_bytes", "building_bytes", "plan_bytes", "too_little_memory"]

_SHARE_OF_ASKED = 0.8  # some is left over, since what a plan counts is an estimate
_EVERYDAY_BYTES = 48 << 20  # modules that are loaded on the way, tokenizers, threads: measured
_KERNEL_BYTES = 3 << 19  # of each architecture: kernels made for its shapes, and its module without tensors
_NEARLY_ALL = 0.85  # of what is allowed: before more than that is held, freed memory goes back


class Allowance:
    """What a search may hold of its own, above what its process held before: not of files, and where Linux tells.

    The C library keeps what was freed, and whoever asks next gets it without the system's having to zero it first. So it goes
    back only where what is held comes near the limit.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._limit_bytes = memory_bytes
        self._before = _own_bytes()

    def tidy(self, coming_bytes: int) -> None:
        """To be called between one piece of work and the next, which may take so much that freed memory does not serve for."""
        if _own_bytes() - self._before + coming_bytes > _NEARLY_ALL * self._limit_bytes:
            give_back_freed_memory()


def _own_bytes() -> int:
    return process_bytes("RssAnon") or 0


def beside_bytes(specimens: Sequence[Specimen], *, num_items: int, num_classes: int) -> int:
    """What a search takes beside what its plan counts: scoring, weights in no file, what every process takes that works."""
    widths = [each.blueprint.anatomy.parts[-1].output_bytes_per_item // 4 for each in specimens]
    everyday = _EVERYDAY_BYTES + len(_one_of_each(specimens)) * _KERNEL_BYTES
    everyday += sum(_memory_bytes(each) for each in specimens if not each.is_mapped)  # of all models at once
    return everyday + scoring_bytes(num_items, max(widths, default=0), num_classes)


def plan_bytes(memory_bytes: int, beside: int) -> int:
    """What is left for a plan."""
    return max(1, int(_SHARE_OF_ASKED * memory_bytes) - beside)


def building_bytes(specimens: Sequence[Specimen]) -> int:
    """Of the weights of the largest network, all of which are there while it is taken apart; nothing else is then."""
    return max((_weight_bytes(each) for each in _one_of_each(specimens)), default=0)


def too_little_memory(specimens: Sequence[Specimen], *, memory_bytes: int, least: int, beside: int) -> RequestError:
    """`least` is the smallest plan; what takes most of it is named."""
    building = building_bytes(specimens)
    needed = math.ceil((max(least, building) + beside) / _SHARE_OF_ASKED)
    return RequestError(
        f"cannot search {plural(len(specimens), 'model')} with --memory of {memory_bytes:,} bytes: expected at least "
        f"{math.ceil(needed / 1e6)}MB ({needed:,} bytes), "
        f"{beside:,} of them for libraries, kernels, scoring and weights that lie in no file, with which items run one at a "
        f"time; what takes most of the rest is {_largest(specimens)}; allow that much or take fewer items"
    )


def _largest(specimens: Sequence[Specimen]) -> str:
    """The weights of a network, or one of the tensors that it makes of an item."""
    kinds = _one_of_each(specimens)
    heavy = max(kinds, key=_weight_bytes)
    wide = max(kinds, key=_activation_bytes)
    if _weight_bytes(heavy) < _activation_bytes(wide):
        parts = wide.blueprint.anatomy.parts
        part = max(parts, key=lambda each: each.largest_bytes_per_item)
        return f"what {wide.model} makes of one item in {', '.join(part.modules[:1]) or 'its forward'}"
    templates = heavy.blueprint.templates
    name = max(heavy.blueprint.used, key=lambda each: copied_bytes(heavy, [each]))
    return f"the weights of {heavy.model}, {_weight_bytes(heavy):,} bytes ({name} alone has {templates[name].nbytes:,})"


def _one_of_each(specimens: Sequence[Specimen]) -> list[Specimen]:
    """Of each architecture."""
    return list({id(each.blueprint): each for each in specimens}.values())


def _memory_bytes(specimen: Specimen) -> int:
    return sum(specimen.blueprint.templates[name].nbytes for name in specimen.blueprint.used)


def _weight_bytes(specimen: Specimen) -> int:
    return copied_bytes(specimen, specimen.blueprint.used)


def _activation_bytes(specimen: Specimen) -> int:
    return max(each.largest_bytes_per_item for each in specimen.blueprint.anatomy.parts)
