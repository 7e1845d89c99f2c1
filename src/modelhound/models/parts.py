"""Cut any network into parts that can be run one after the other, without rewriting it.

In:  a Network and a small batch of inputs for it
Out: an Anatomy: the places where the network can be cut, and what each part holds and costs
     run_part: the network from one cut to another
Nothing here knows a family of networks, what parts are good for, or where intermediate outputs are kept.

How a part is run: see `calls`.

How cuts are found. A place is a cut if everything the result depends on goes through the one tensor that a module returns
there, as the graph that autograd draws of one forward tells (`cuts`). Only modules that lie in a list, or beside such lists,
are looked at: the insides of a block are not worth a cut.

How cuts are proved. All parts are run one after the other, with NaN in every stand-in, and what each returns must equal what
the whole forward had at that place, bit by bit. A cut from which that does not work, or whose stored output would be changed in
place, is given up; a network that has none left has one part: itself.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from modelhound.models.calls import PROBE_TOKENS, Call, Inputs, Replay, is_size, muting, run_between
from modelhound.models.code import Telling, is_strangers
from modelhound.models.cuts import find_cuts, order_nodes
from modelhound.models.source import Network
from modelhound.models.watching import (
    Kept,
    Seen,
    Watched,
    find_kept,
    forget,
    note_attributes,
    observe,
    record_outputs,
)

__all__ = ["PROBE_TOKENS", "Anatomy", "Inputs", "Part", "RunPart", "all_tensors", "dissect", "run_part", "running"]

# Of what attributes of modules are called. Two are of transformers: where it was, how its file names tensors; two of timm:
# where weights are from, and how images are made for them.
_SAYS_NOTHING = frozenset(
    {
        *("num_classes", "name_or_path", "_weight_conversions", "pretrained_cfg", "default_cfg"),
        *vars(nn.Module()),
    }
)
_WRITES_INTO_STAND_IN = "more than one element of the written-to tensor"  # torch's words for a tensor without memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What runs between two cuts."""

    modules: tuple[str, ...]
    """Paths of the modules it calls, in order; a network that is not cut calls "", itself."""

    tensors: tuple[str, ...]
    """Names of the parameters and buffers it uses; the first part also has those that all parts may ask for."""

    flops_per_item: float
    output_bytes_per_item: int
    largest_bytes_per_item: int
    """Of whatever tensor is made on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anatomy:
    """A network's parts. It describes all networks of the same architecture, whatever their weights."""

    parts: tuple[Part, ...]
    architecture: str
    """Hash of everything but the weights: classes, whose code they run, settings and shapes."""

    trouble: str | None
    """Why some of the places that look like cuts are none."""

    calls: tuple[Call, ...]
    cuts: tuple[int, ...]
    """Number of the call after which each part but the last ends."""

    probe_items: int
    result_shape: tuple[int, ...]
    """Of what it makes of one item."""

    everywhere: tuple[str, ...] = ()
    """Tensors that the first part owns and all others may ask for: the forward around the modules is run for each part, and so
    are modules that do not look at the items."""

    writable_stand_ins: bool = False
    """The forward writes into what modules return, so that what stands in for it must have memory of its own."""

    kept: tuple[Kept, ...] = ()
    """What its modules keep from one forward for the next. It may rest on the weights, which are others' the next time."""


def dissect(network: Network, inputs: Inputs) -> Anatomy:
    """The parts of a network, found and proved with `inputs`, two items or more. The network is left as it was."""
    watched = Watched(network.module)
    said = _name_all(network)  # before anything runs, since some keep what they have seen
    before = note_attributes(network.module)
    with _evaluating(network.module):
        seen = observe(network, watched, inputs)
        order = order_nodes(seen)
        calls = _sum_up_calls(seen, set(order))
        values = record_outputs(network, watched, inputs)
        candidates = find_cuts(seen, order)
        cuts, trouble = _prove(network, calls, values, candidates, inputs, writable=False)
        writable = trouble is not None and _WRITES_INTO_STAND_IN in trouble
        if writable:
            cuts, trouble = _prove(network, calls, values, candidates, inputs, writable=True)
        kept = find_kept(network.module, before)
        forget(network.module, kept)
        anatomy = _describe(network, said, watched, seen, calls, cuts, trouble=trouble)
        return dataclasses.replace(anatomy, writable_stand_ins=writable, kept=kept)


def _sum_up_calls(seen: Seen, on_the_way: set[Any]) -> tuple[Call, ...]:
    calls = []
    for path, output in zip(seen.paths, seen.outputs, strict=True):
        tensors = [each for each in tree_leaves(output) if isinstance(each, Tensor)]
        calls.append(
            Call(
                path=path,
                output=tree_map(lambda each: each.shape if isinstance(each, Tensor) else each, output),
                follows_data=not tensors or any(each.grad_fn in on_the_way for each in tensors),
            )
        )
    return tuple(calls)


def _describe(
    network: Network,
    said: tuple[str, dict[str, str]],
    watched: Watched,
    seen: Seen,
    calls: tuple[Call, ...],
    cuts: tuple[int, ...],
    *,
    trouble: str | None,
) -> Anatomy:
    num_items = len(seen.result)
    state = dict(all_tensors(network.module))
    called = {call.path for call in calls}
    always = _run_for_later_parts(calls, cuts)
    owners = {name: _owner(name, watched.paths) for name in state}
    for name, owner in owners.items():
        # asked for without calling the module that has it, such as a table of positions: then it is the network's own
        if owner is not None and (owner in always or (owner not in called and seen.is_used(state[name]))):
            owners[name] = None
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
            network, said, watched, seen, {name: state[name] for name in _used(owners, called)}
        ),
        trouble=trouble,
        calls=calls,
        cuts=cuts,
        probe_items=num_items,
        result_shape=tuple(seen.result.shape[1:]),
        everywhere=tuple(name for name, owner in owners.items() if owner is None) if cuts else (),
    )


def _run_for_later_parts(calls: Sequence[Call], cuts: Sequence[int]) -> set[str]:
    """Modules that do not look at the items, such as one for positions, and are called before the last part begins.

    After that nobody else runs them: a pooler that nobody asks is the last part's alone, or near-copies that differ in it would
    have no part in common.
    """
    last = cuts[-1] if cuts else -1
    return {call.path for number, call in enumerate(calls) if not call.follows_data and number <= last}


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
    size: torch.Size = output if is_size(output) else output[0]
    return size


def _name_all(network: Network) -> tuple[str, dict[str, str]]:
    """What makes the features, and each module by its path: whose code that is, and what it was made with."""
    telling = Telling(network.module)
    modules = network.module.named_modules()
    named = {path: f"{telling.kind(type(each))} {_settings_of(each, telling)!r}" for path, each in modules}
    return telling.function(network.extract), named


def _hash_architecture(
    network: Network, said: tuple[str, dict[str, str]], watched: Watched, seen: Seen, used: Mapping[str, Tensor]
) -> str:
    """Over everything that decides what the forward does, less the weights and less modules that it does not call."""
    extract, modules = said
    # how often a forward goes through a module may stand in its configuration alone
    written = [extract, f"{network.config}", " ".join(seen.paths), f"{tuple(seen.result.shape[1:])}"]
    called = set(seen.paths)
    for path, name in modules.items():
        owner = path if path in watched.paths else _owner(path, watched.paths)
        if owner is None or owner in called:  # the others are the classifier, mostly
            written.append(f"{path} {name}")
    written += [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in used.items()]
    # a path may hold bytes that are no text, which Python hands on as surrogates
    return hashlib.sha256("\0".join(written).encode("utf-8", "surrogatepass")).hexdigest()


def _settings_of(module: nn.Module, telling: Telling) -> list[tuple[str, str]]:
    """What a module was made with, as far as it can be written down, and what is done to all that goes in and out.

    Of those of libraries plain settings say it; strangers may keep anything anywhere.
    """
    write: Callable[[Any], str | None] = telling.tell
    if not is_strangers(type(module)):
        write = functools.partial(_write_down, telling=telling)
    written = ((name, write(value)) for name, value in vars(module).items() if name not in _SAYS_NOTHING)
    hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
    return [
        *sorted((name, text) for name, text in written if text is not None),
        *(("", telling.function(hook)) for hook in hooks),
    ]


def _write_down(value: Any, *, telling: Telling) -> str | None:
    """Numbers, texts, functions and lists of these; None for all else."""
    if isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple | list):
        return repr([_write_down(each, telling=telling) or type(each).__name__ for each in value])
    if isinstance(value, type):
        return telling.kind(value)
    return telling.function(value) if callable(value) else None


def _prove(
    network: Network,
    calls: Sequence[Call],
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
    calls: Sequence[Call],
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
    run = Replay(calls, len(expected), begin=begin, end=end, placeholder=torch.nan, writable=writable)
    try:
        with muting(network, calls, run):
            made = run_between(network, run, _without_pixels(inputs), value)
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


@contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


RunPart = Callable[[Inputs, Tensor | None], Tensor]


@contextmanager
def running(network: Network, anatomy: Anatomy, first: int, stop: int) -> Iterator[RunPart]:
    """A function that runs parts `first` to `stop` - 1 on (inputs, output of part `first` - 1).

    While the context is open the network cannot be used otherwise, and by one thread only. Inputs are the network's own; of
    images only their shape matters where `first` is not 0.
    """
    forget(network.module, anatomy.kept)
    if first == 0 and stop == len(anatomy.parts):
        yield lambda inputs, value: network.extract(inputs)
        return
    begin = anatomy.cuts[first - 1] if first > 0 else -1
    end = anatomy.cuts[stop - 1] if stop < len(anatomy.parts) else len(anatomy.calls)
    run = Replay(
        anatomy.calls,
        anatomy.probe_items,
        begin=begin,
        end=end,
        placeholder=0.0,
        writable=anatomy.writable_stand_ins,
    )
    with muting(network, anatomy.calls, run):
        yield lambda inputs, value: run_between(network, run, inputs, value)


def run_part(
    network: Network, anatomy: Anatomy, first: int, stop: int, inputs: Inputs, value: Tensor | None = None
) -> Tensor:
    """One batch through parts `first` to `stop` - 1; for many batches, `running` spares setting up each time."""
    with running(network, anatomy, first, stop) as run:
        return run(inputs, value)
