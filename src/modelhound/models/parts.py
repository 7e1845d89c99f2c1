"""Cut any network into parts that can be run one after the other, without rewriting it.

In:  a Network and a small batch of inputs for it
Out: an Anatomy: the places where the network can be cut, and what each part holds and costs
     run_part: the network from one cut to another
Nothing here knows a family of networks, what parts are good for, or where intermediate outputs are kept.

How a part is run. The network's own forward runs from its beginning, but whatever modules come before the part are muted:
they return a placeholder of the right shape at once, the last of them returns the stored output, and when the part's last
module has answered, the forward is left. The few operations written between modules run as always, and so do modules that do
not look at the items, such as those for positions.

How cuts are found. A place is a cut if everything the result depends on goes through the one tensor that a module returns
there. The graph that autograd draws of one forward tells: a node is a cut if no edge jumps over it. Only modules that lie in
a list, or beside such lists, are looked at: the insides of a block are not worth a cut.

How cuts are proved. All parts are run one after the other, with NaN in every placeholder, and what each returns must equal what
the whole forward had at that place, bit by bit. A cut from which that does not work, or whose stored output would be changed in
place, is given up; a network that has none left has one part: itself.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from modelhound.models.source import Network

__all__ = ["PROBE_TOKENS", "Anatomy", "Inputs", "Part", "RunPart", "all_tensors", "dissect", "run_part", "running"]

Inputs = Tensor | dict[str, Tensor]
"""Images, or the named tensors of a text encoder."""

_MANY = 8
_WRITES_INTO_STAND_IN = "more than one element of the written-to tensor"  # torch's words for a tensor without memory
PROBE_TOKENS = 13
"""How long probing texts are: a number that is hardly ever the width of anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What runs between two cuts."""

    modules: tuple[str, ...]
    """Paths of the modules it calls, in order; a network that is not cut calls "", itself."""

    tensors: tuple[str, ...]
    """Names of the parameters and buffers it uses; the first part also has those that belong to no module of any part."""

    flops_per_item: float
    output_bytes_per_item: int
    largest_bytes_per_item: int
    """Of whatever tensor is made on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """One module call of the forward: its place in the order of calls is its number."""

    path: str
    output: Any
    """What it returned, with a torch.Size in place of each tensor."""
    follows_data: bool
    """Whether that depends on the items at all; if not, it is always run, so that what comes later may use it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """A network's parts. It describes all networks of the same architecture, whatever their weights."""

    parts: tuple[Part, ...]
    architecture: str
    """Hash of everything but the weights: classes, settings and shapes."""

    trouble: str | None
    """Why some of the places that look like cuts are none."""

    calls: tuple[_Call, ...]
    cuts: tuple[int, ...]
    """Number of the call after which each part but the last ends."""

    probe_items: int
    writable_stand_ins: bool = False
    """The forward writes into what modules return, so that what stands in for it must have memory of its own."""


def dissect(network: Network, inputs: Inputs) -> Anatomy:
    """The parts of a network, found and proved with `inputs`, two items or more. The network is left as it was."""
    watched = _Watched(network.module)
    with _evaluating(network.module):
        seen = _observe(network, watched, inputs)
        order = _order_nodes(seen.result.grad_fn, set(seen.sources)) if seen.result.grad_fn is not None else []
        calls = _sum_up_calls(seen, set(order))
        values = _record(network, watched, inputs)
        candidates = _find_cuts(seen, order)
        cuts, trouble = _prove(network, calls, values, candidates, inputs, writable=False)
        writable = trouble is not None and _WRITES_INTO_STAND_IN in trouble
        if writable:
            cuts, trouble = _prove(network, calls, values, candidates, inputs, writable=True)
        return dataclasses.replace(
            _describe(network, watched, seen, calls, cuts, trouble=trouble), writable_stand_ins=writable
        )


class _Watched:
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
class _Seen:
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


class _Costs(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every operation and every tensor that is made.

    torch's FlopCounterMode counts the same by the same formulas, but takes other operations apart where it can, batch norms
    among them, which made the look at EfficientNet-B0 take half as long again.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self._largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
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


def _observe(network: Network, watched: _Watched, inputs: Inputs) -> _Seen:
    """Run the whole forward once with autograd on, and note every watched call."""
    seen = _Seen(paths=[], outputs=[], nodes=[], flops=[], largest=[], sources=[], result=torch.empty(0))
    costs = _Costs()
    paths = {module: path for path, module in watched.paths.items()}

    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        tensor = _tensor_of(output)
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
                copy = (
                    inputs.detach().clone().requires_grad_(True) * 1
                )  # a network may change its input, but not a leaf
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


def _tensor_of(output: Any) -> Tensor | None:
    """The one tensor a module returns, alone or as the first of a tuple of nothing else."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
        return output[0] if all(each is None for each in output[1:]) else None
    return None


def _same(looked_up: Any, tokens: Tensor) -> bool:
    """Whether these are the tokens; some networks pad them themselves."""
    return (
        isinstance(looked_up, Tensor)
        and looked_up.ndim == tokens.ndim
        and torch.equal(looked_up[:, : tokens.shape[1]], tokens)
    )


def _sum_up_calls(seen: _Seen, on_the_way: set[Any]) -> tuple[_Call, ...]:
    calls = []
    for path, output in zip(seen.paths, seen.outputs, strict=True):
        tensors = [each for each in tree_leaves(output) if isinstance(each, Tensor)]
        calls.append(
            _Call(
                path=path,
                output=tree_map(lambda each: each.shape if isinstance(each, Tensor) else each, output),
                follows_data=not tensors or any(each.grad_fn in on_the_way for each in tensors),
            )
        )
    return tuple(calls)


def _find_cuts(seen: _Seen, order: Sequence[Any]) -> tuple[int, ...]:
    """Numbers of the calls after which everything depends on what they returned alone."""
    place = {node: number for number, node in enumerate(order)}
    # An edge leads from a node to those it was computed from; `reach` is how far edges from later nodes jump back.
    alone = set()
    reach = len(order)
    for number in range(len(order) - 1, -1, -1):
        node = order[number]
        if reach >= number:
            alone.add(node)
        if node in seen.sources:
            reach = min(reach, -1 if len(seen.sources) > 1 else number)
            continue
        reach = min([reach, *(place[before] for before, _ in node.next_functions if before in place)])
    cuts: dict[Any, int] = {}
    for number, node in enumerate(seen.nodes):
        if node is not None and node in alone and node is not seen.result.grad_fn:
            cuts[node] = number  # of several calls that return the same tensor the last one
    return tuple(sorted(cuts.values()))


def _order_nodes(end: Any, sources: set[Any]) -> list[Any]:
    """All nodes on paths from a source to `end`, each after those it was computed from."""
    leads_to_source: dict[Any, bool] = {}
    order: list[Any] = []
    stack: list[tuple[Any, bool]] = [(end, False)]
    while stack:
        node, done = stack.pop()
        if done:
            befores = [before for before, _ in node.next_functions if before is not None]
            leads_to_source[node] = node in sources or any(leads_to_source.get(before, False) for before in befores)
            if leads_to_source[node]:
                order.append(node)
        elif node not in leads_to_source:
            leads_to_source[node] = False
            stack.append((node, True))
            if node not in sources:
                stack.extend((before, False) for before, _ in node.next_functions if before is not None)
    return order


def _describe(
    network: Network,
    watched: _Watched,
    seen: _Seen,
    calls: tuple[_Call, ...],
    cuts: tuple[int, ...],
    *,
    trouble: str | None,
) -> Anatomy:
    num_items = len(seen.result)
    state = dict(all_tensors(network.module))
    owners = {name: _owner(name, watched.paths) for name in state}
    called = {call.path for call in calls}
    ends = (*cuts, len(calls) - 1)
    parts = []
    begin = 0
    for number, end in enumerate(ends):
        last = number == len(ends) - 1
        modules = tuple(call.path for call in calls[begin : end + 1]) if cuts else ("",)
        names = [name for name, owner in owners.items() if not cuts or owner in modules]
        if number == 0 and cuts:
            names += [name for name, owner in owners.items() if owner is None]
        flops = seen.flops[-1 if last else end] - (seen.flops[begin - 1] if begin else 0)
        largest = max(seen.largest[begin:] if last else seen.largest[begin : end + 1])
        shape = seen.result.shape if last else _size_of(calls[end].output)
        parts.append(
            Part(
                modules=modules,
                tensors=tuple(names),
                flops_per_item=flops / num_items,
                output_bytes_per_item=4 * shape.numel() // num_items,
                largest_bytes_per_item=4 * largest // num_items,
            )
        )
        begin = end + 1
    return Anatomy(
        parts=tuple(parts),
        architecture=_hash_architecture(
            network, watched, called, {name: state[name] for name in _used(owners, called)}
        ),
        trouble=trouble,
        calls=calls,
        cuts=cuts,
        probe_items=num_items,
    )


def all_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers, those that are not saved included."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _owner(name: str, paths: Mapping[str, nn.Module]) -> str | None:
    """The watched module that a tensor belongs to; None for one that belongs to the network itself or to a list."""
    path = name
    while path:
        path = path.rpartition(".")[0]
        if path in paths:
            return path
    return None


def _used(owners: Mapping[str, str | None], called: set[str]) -> Iterator[str]:
    """The tensors of modules that are called, and of nobody."""
    return (name for name, owner in owners.items() if owner is None or owner in called)


def _size_of(output: Any) -> torch.Size:
    """Of the one tensor that a call at a cut returned."""
    size: torch.Size = output if _is_size(output) else output[0]
    return size


def _hash_architecture(network: Network, watched: _Watched, called: set[str], used: Mapping[str, Tensor]) -> str:
    """Over everything that decides what the forward does, less the weights and less modules that it does not call."""
    digest = hashlib.sha256(repr(type(network.module)).encode())
    for path, module in network.module.named_modules():
        owner = path if path in watched.paths else _owner(path, watched.paths)
        if owner is not None and owner not in called:
            continue  # the classifier, mostly
        settings = sorted(
            (name, value)
            for name, value in vars(module).items()
            if isinstance(value, bool | int | float | str | tuple) and name not in ("training", "num_classes")
        )
        digest.update(f"\0{path} {type(module).__qualname__} {settings!r}".encode())
    for name, tensor in used.items():
        digest.update(f"\0{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
    return digest.hexdigest()


def _record(network: Network, watched: _Watched, inputs: Inputs) -> list[Tensor | None]:
    """What every call returns in a forward as features are made, without autograd: then other kernels may run.

    The last is what the whole network returns.
    """
    values: list[Tensor | None] = []

    def note(module: nn.Module, arguments: Any, output: Any) -> None:
        tensor = _tensor_of(output)
        values.append(None if tensor is None else tensor.clone())  # a later module may change it in place

    hooks = [module.register_forward_hook(note) for module in watched.paths.values()]
    try:
        with torch.no_grad():
            whole = network.extract(_copy(inputs))
    finally:
        for hook in hooks:
            hook.remove()
    return [*values, whole]


def _prove(
    network: Network,
    calls: Sequence[_Call],
    values: Sequence[Tensor | None],
    candidates: tuple[int, ...],
    inputs: Inputs,
    *,
    writable: bool,
) -> tuple[tuple[int, ...], str | None]:
    """Those of the candidates from which the rest of the network can be run, and why others cannot."""
    proven: list[int] = []
    troubles: list[str] = []
    with torch.no_grad():
        for end in (*candidates, len(calls)):
            while proven:  # from the last cut if that works, else from the one before it, ...
                trouble = _try_from(network, calls, values, proven[-1], end, inputs, writable=writable)
                if trouble is None:
                    break
                troubles.append(f"{calls[proven.pop()].path} is no place to cut: {trouble}")
            proven.append(end)
    return tuple(proven[:-1]), troubles[0] if troubles else None


def _try_from(
    network: Network,
    calls: Sequence[_Call],
    values: Sequence[Tensor | None],
    begin: int,
    end: int,
    inputs: Inputs,
    *,
    writable: bool,
) -> str | None:
    """What goes wrong between two calls, if anything does."""
    before, expected = values[begin], values[end]
    assert before is not None
    assert expected is not None
    value = before.clone()
    run = _Run(calls, len(expected), begin=begin, end=end, placeholder=torch.nan, writable=writable)
    try:
        with _wrapped(network, calls, run):
            made = _run_batch(network, run, _without_pixels(inputs), value)
    except Exception as error:  # whatever a forward raises when it meets a placeholder
        return f"{type(error).__name__}: {error}"
    if not torch.equal(value, before):
        return "what follows changes it in place"
    if made.shape != expected.shape or not torch.equal(made, expected):
        return "what follows depends on more than it"
    return None


def _without_pixels(inputs: Inputs) -> Inputs:
    """What parts after the first are given for inputs: images of the same shape, and nothing more (see `running`)."""
    return torch.full_like(inputs, torch.nan) if isinstance(inputs, Tensor) else dict(inputs)


def _copy(inputs: Inputs) -> Inputs:
    return inputs.clone() if isinstance(inputs, Tensor) else dict(inputs)


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


class _Reached(Exception):  # noqa: N818 - not an error: the way out of a forward that has done enough
    """The part is done; carries its output."""


RunPart = Callable[[Inputs, Tensor | None], Tensor]


@contextmanager
def running(network: Network, anatomy: Anatomy, first: int, stop: int) -> Iterator[RunPart]:
    """A function that runs parts `first` to `stop` - 1 on (inputs, output of part `first` - 1).

    While the context is open the network cannot be used otherwise, and by one thread only. Inputs are the network's own; of
    images only their shape matters where `first` is not 0.
    """
    if first == 0 and stop == len(anatomy.parts):
        yield lambda inputs, value: network.extract(inputs)
        return
    begin = anatomy.cuts[first - 1] if first > 0 else -1
    end = anatomy.cuts[stop - 1] if stop < len(anatomy.parts) else len(anatomy.calls)
    run = _Run(
        anatomy.calls,
        anatomy.probe_items,
        begin=begin,
        end=end,
        placeholder=0.0,
        writable=anatomy.writable_stand_ins,
    )
    with _wrapped(network, anatomy.calls, run):
        yield lambda inputs, value: _run_batch(network, run, inputs, value)


@contextmanager
def _wrapped(network: Network, calls: Sequence[_Call], run: "_Run") -> Iterator[None]:
    # One wrapper for each module, by whichever path: a module that is called twice counts both calls.
    modules = [network.module.get_submodule(path) for path in {call.path for call in calls}]
    wrapped = {module: module.forward for module in modules}
    for module, forward in wrapped.items():
        module.forward = run.wrap(forward)
    try:
        yield
    finally:
        for module in wrapped:
            del module.forward  # the method of the class shows again


def _run_batch(network: Network, run: "_Run", inputs: Inputs, value: Tensor | None) -> Tensor:
    run.start(inputs, value)
    try:
        return network.extract(inputs)
    except _Reached as reached:
        output: Tensor = reached.args[0]
        return output


class _Run:
    """Counts calls, and answers those that come before `begin` without work."""

    def __init__(
        self, calls: Sequence[_Call], num_items: int, *, begin: int, end: int, placeholder: float, writable: bool
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
                    self._stand_ins[self._number] = tree_map(self._stand_in, output, is_leaf=_is_size)
                return self._stand_ins[self._number]
            if self._number == self._begin:
                output = self._calls[self._number].output
                return self._value if _is_size(output) else (self._value, *output[1:])
            output = forward(*arguments, **options)
            if self._number == self._end:
                raise _Reached(_tensor_of(output))
            return output

        return answer

    def _stand_in(self, output: Any) -> Any:
        """A tensor that takes no memory if it can, in place of one of this size; anything else as it is."""
        if not _is_size(output):
            return output
        assert self._blank is not None
        sizes = [self._num_tokens if self._num_tokens and each == PROBE_TOKENS else each for each in output]
        if sizes and sizes[0] == output[0] and output[0] % self._probe_items == 0:
            sizes[0] = output[0] // self._probe_items * self._num_items  # some networks have several rows per item
        blank = self._blank.expand(sizes)
        return blank.clone() if self._writable else blank


def _is_size(output: Any) -> bool:
    return isinstance(output, torch.Size)


def run_part(
    network: Network, anatomy: Anatomy, first: int, stop: int, inputs: Inputs, value: Tensor | None = None
) -> Tensor:
    """One batch through parts `first` to `stop` - 1; for many batches, `running` spares setting up each time."""
    with running(network, anatomy, first, stop) as run:
        return run(inputs, value)
