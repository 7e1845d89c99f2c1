"""Build a network around tensors that are there already.

In:  a function that builds a module and loads tensors into it, as other people's libraries do
Out: the module, made of those very tensors: none drawn at random to be overwritten, none copied
Nothing here knows a library or a kind of network. What comes out equals what the function alone would give.

Building a large network is mostly drawing random weights, and loading mostly copying. Within `adopting`, random draws leave
memory as it is, and load_state_dict takes the tensors instead of copying them. Whatever was left undrawn must be gone after
loading; a network that kept some of it (numbers drawn at random that no file holds) is built again in the ordinary way.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

__all__ = ["build_around"]

_alone = threading.Lock()  # load_state_dict belongs to the whole process

_DRAWING = frozenset(
    {
        Tensor.uniform_,
        Tensor.normal_,
        Tensor.bernoulli_,
        *(
            getattr(nn.init, name)
            for name in (
                *("uniform_", "normal_", "trunc_normal_", "orthogonal_", "sparse_"),
                *("xavier_uniform_", "xavier_normal_", "kaiming_uniform_", "kaiming_normal_"),
            )
        ),
    }
)


def build_around(weights: Mapping[str, Tensor], build: Callable[[], nn.Module]) -> nn.Module:
    """The module that `build` makes and loads with `weights`."""
    with _alone:
        with _Undrawn(weights.values()) as undrawn, _loading_by_reference():
            module = build()
        # buffers that are not saved count too
        left = [*module.parameters(), *module.buffers()]
        if not any(undrawn.holds(tensor) for tensor in left):
            return module
    return build()


class _Undrawn(TorchFunctionMode):
    """Leaves undone whatever would fill a tensor with random numbers, and what would then be done to those."""

    def __init__(self, given: Iterable[Tensor]) -> None:
        super().__init__()
        self._given = {id(tensor) for tensor in given}
        self._tensors: dict[int, Tensor] = {}  # held, so that no other gets the same memory

    def holds(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._tensors

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__deepcopy__ and id(args[0]) in self._given:
            return args[0]  # timm copies its settings, and the tensors among them
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.startswith("__"):
            target = args[0] if args else (kwargs or {}).get("tensor")
            if isinstance(target, Tensor) and target.device.type == "cpu":
                if func in _DRAWING:
                    self._tensors[target.untyped_storage().data_ptr()] = target
                if self.holds(target) and name not in ("requires_grad_", "detach_"):
                    return target
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def _loading_by_reference() -> Iterator[None]:
    """Module.load_state_dict takes tensors as they are where their types fit and no two names share one."""
    ordinary = nn.Module.load_state_dict

    def adopt(module: nn.Module, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        own = module.state_dict(keep_vars=True)
        if assign or len({id(tensor) for tensor in own.values()}) < len(own):
            return ordinary(module, state_dict, strict=strict, assign=assign)
        fitted = {
            name: tensor.to(own[name].dtype) if name in own and isinstance(tensor, Tensor) else tensor
            for name, tensor in state_dict.items()
        }
        return ordinary(module, fitted, strict=strict, assign=True)

    nn.Module.load_state_dict = adopt  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        nn.Module.load_state_dict = ordinary  # type: ignore[method-assign]
