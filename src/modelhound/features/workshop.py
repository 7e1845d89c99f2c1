"""Where many networks are taken apart and put together again: one module per architecture, and each tensor once.

In:  models, with their weights or with random ones
Out: a Specimen of each: its parts with fingerprints, and tensors that can be put into the one module of its architecture (see
     `shelf`)
Nothing here knows items, plans or scores.

Two parts with the same fingerprint give the same output for the same input: it is a hash over the architecture, the place in
it, and the content of every tensor the part uses, BatchNorm's statistics included. Equal tensors of different models are kept
once. A module is built for the first model of an architecture; for the others only their tensors are read.
"""

import dataclasses
import hashlib
import math
from collections import ChainMap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modelhound.data import InputForm, Tokenising
from modelhound.data.tokenising import tokenise
from modelhound.features.plain import build_network
from modelhound.features.staging import staging_for
from modelhound.features.supply import input_key
from modelhound.models import ModelRef, Network, Weights, source_of, suitable_layout
from modelhound.models.parts import PROBE_TOKENS, Anatomy, all_tensors, dissect
from modelhound.models.source import BUILDING
from modelhound.models.tensor_files import FileTensors
from modelhound.models.tensor_hashes import hash_tensor
from modelhound.settings import ModelSettings

__all__ = ["Blueprint", "Specimen", "Workshop", "make_probe"]

_PROBE_ITEMS = 2
_READ_INTO_MEMORY = ("py", "timm")  # sources whose weights lie in no file, or not any more
_WORTH_COMPILING = 50_000  # items: EfficientNet-B0 on an H200 gains from there on
_PROBE_TEXT = "what does it say " * PROBE_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blueprint:
    """One architecture: the module that all of its models take turns in."""

    network: Network
    anatomy: Anatomy
    slots: Mapping[str, Tensor] = field(repr=False)
    """The module's parameters and buffers by name."""
    templates: Mapping[str, Tensor] = field(repr=False)
    """The same without memory: their shapes, types and orders in memory."""
    kinds: Mapping[str, torch.dtype] = field(repr=False)
    """The types these had before they were brought to the device."""
    parameters: frozenset[str] = field(repr=False)
    """Their names, one of each that has several."""
    layout: torch.memory_format
    """Of its convolutions, and so of images for it."""
    unsaved: Mapping[str, Tensor] = field(repr=False)
    """Buffers that no file holds, the same in all networks of the architecture; on the host."""
    used: tuple[str, ...] = field(repr=False)
    """Names of the parameters and buffers that its parts use."""
    part_bytes: tuple[int, ...] = field(repr=False)
    """Of the tensors of each part, as the device holds them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Specimen:
    """One model, taken apart."""

    model: ModelRef
    blueprint: Blueprint
    form: InputForm
    num_parameters: int
    tensors: Mapping[str, Tensor] = field(repr=False)
    """All that its parts use, and maybe others, by name, on the host; those in files are made when they are asked for."""
    digests: Mapping[str, str] = field(repr=False)
    """Of each that its parts use."""
    fingerprints: tuple[str, ...]
    """One per part."""
    is_mapped: bool
    """Whether its tensors lie in a file, whose memory the system takes back when it wants to."""
    classifier: tuple[Tensor, Tensor | None] | None
    """Weight and bias of the linear layer from features to the classes it was trained on, where it has one; on the host."""
    files: FileTensors | None = field(default=None, repr=False)
    """Where its tensors lie, if that is in mapped files."""

    @property
    def fingerprint(self) -> str:
        """Of the whole model."""
        return hashlib.sha256("".join(self.fingerprints).encode()).hexdigest()


class Workshop:
    """Takes models apart for one device and precision; several threads may ask at once."""

    def __init__(
        self,
        settings: ModelSettings,
        *,
        seed: int,
        device: str,
        dtype: torch.dtype,
        num_items: int = 0,
        empty: bool = False,
    ) -> None:
        """`num_items` is about how many items each architecture will be run on; `empty` leaves modules without tensors.

        Whoever runs a part of one puts them in (see `shelf`), so that the device holds those that are in use and no others.
        """
        self._settings, self._seed, self.device, self.dtype = settings, seed, device, dtype
        self._num_items, self._empty = num_items, empty
        self._moulds: dict[ModelRef, str | None] = {}
        self._by_mould: dict[str, Blueprint] = {}
        self._by_architecture: dict[str, Blueprint] = {}
        self._fitting: dict[tuple[int, ...], tuple[object, ...]] = {}  # by identity, with what must live for that

    def mould(self, model: ModelRef) -> str | None:
        """Names what models have in common that fit into one module; None where nobody knows."""
        if model not in self._moulds:
            self._moulds[model] = source_of(model).mould(model.name, self._settings)
        return self._moulds[model]

    def take_apart(
        self,
        model: ModelRef,
        weights: Weights | None,
        hashed: Callable[[], Mapping[str, str]],
        built: Callable[[InputForm], None] = lambda form: None,
    ) -> Specimen:
        """The parts of one model; `weights` as its source reads them, or None for random ones.

        `hashed` gives the digest of each; it is asked last, since it may have to wait. `built` is told what a network wants, if
        one has to be built, before anything else is done with it.
        """
        mould = self.mould(model)
        blueprint = self._by_mould.get(mould) if mould else None
        tensors: Mapping[str, Tensor]
        if blueprint is not None and weights is not None and self._fits(blueprint, weights):
            tensors, digests = weights, hashed()
        else:
            blueprint, tensors = self._build(model, mould, weights, built)
            # building may have renamed or converted some
            digests = _of_same_tensors(hashed(), weights or {}, tensors)
        everything = ChainMap(dict(blueprint.unsaved), tensors)  # type: ignore[arg-type]  # only read
        digests = {name: digests.get(name) or hash_tensor(everything[name]) for name in blueprint.used}
        return Specimen(
            model=model,
            blueprint=blueprint,
            form=blueprint.network.preprocessing,
            num_parameters=_count_parameters(blueprint, tensors),
            tensors=everything,
            digests=digests,
            fingerprints=_fingerprint_parts(blueprint.anatomy, digests),
            is_mapped=isinstance(weights, FileTensors)
            or (weights is not None and model.source not in _READ_INTO_MEMORY),
            classifier=_find_classifier(blueprint, tensors),
            files=weights if isinstance(weights, FileTensors) else None,
        )

    def _fits(self, blueprint: Blueprint, weights: Weights) -> bool:
        """Whether the tensors can go into the module as they are; near-copies of a network are looked at once."""
        if not isinstance(weights, FileTensors):
            return _fits(blueprint, weights)
        key = id(blueprint), *map(id, weights.headers)
        if key not in self._fitting and _fits(blueprint, weights):
            self._fitting[key] = (blueprint, *weights.headers)
        return key in self._fitting

    def _build(
        self, model: ModelRef, mould: str | None, weights: Weights | None, built: Callable[[InputForm], None]
    ) -> tuple[Blueprint, Mapping[str, Tensor]]:
        """Build the network; it becomes the blueprint of its architecture unless there is one."""
        with BUILDING:
            network = build_network(model, weights, self._settings, seed=self._seed)
        built(network.preprocessing)
        # as they came, on the host: what rounding makes of them depends on the device
        tensors = {name: tensor.detach() for name, tensor in all_tensors(network.module)}
        saved = network.module.state_dict(keep_vars=True)
        layout = self._choose_layout(network)
        if self.device != "cpu":
            _move(network.module, self.device, self.dtype)
        network.module.to(self.device, self.dtype).to(memory_format=layout)  # type: ignore[call-overload]
        form = _probing_form(network.preprocessing, model, self._settings)
        probe = make_probe(form, _PROBE_ITEMS, device=self.device, dtype=self.dtype, layout=layout)
        unsaved = {name: tensor for name, tensor in tensors.items() if name not in saved}
        anatomy = _with_unsaved(dissect(network, probe), unsaved)
        slots = dict(all_tensors(network.module))
        blueprint = self._by_architecture.setdefault(
            f"{anatomy.architecture} {input_key(network.preprocessing)}",
            Blueprint(
                network=network,
                anatomy=anatomy,
                slots=slots,
                templates={name: _without_memory(tensor) for name, tensor in slots.items()},
                kinds={name: tensor.dtype for name, tensor in tensors.items()},
                parameters=frozenset(name for name, _ in network.module.named_parameters()),
                layout=layout,
                unsaved=unsaved,
                used=tuple(dict.fromkeys(name for part in anatomy.parts for name in part.tensors)),
                part_bytes=tuple(sum(slots[name].nbytes for name in part.tensors) for part in anatomy.parts),
            ),
        )
        if mould is not None:
            self._by_mould.setdefault(mould, blueprint)
        if self._empty:
            for slot in blueprint.slots.values():
                slot.data = slot.new_empty(0)
        return blueprint, tensors

    def _choose_layout(self, network: Network) -> torch.memory_format:
        """The order in memory that suits convolutions best.

        What cuDNN compiles for depthwise ones takes seconds, and pays over many items
        (benchmarks/results/engine_log_202611.md).
        """
        return suitable_layout(self.device, is_depthwise=network.is_depthwise and self._num_items < _WORTH_COMPILING)


def _probing_form(form: InputForm, model: ModelRef, settings: ModelSettings) -> InputForm:
    """What a network is probed with: by their length texts are told from other sides of a tensor, also where --tokens asks for
    shorter ones. A network of one's own is never given more than it says it takes."""
    if isinstance(form, Tokenising) and form.max_tokens == settings.tokens and model.source != "py":
        return dataclasses.replace(form, max_tokens=max(form.max_tokens, PROBE_TOKENS))
    return form


def make_probe(form: InputForm, num_items: int, *, device: str, dtype: torch.dtype, layout: torch.memory_format) -> Any:
    """A batch of made-up items."""
    if isinstance(form, Tokenising):
        tokens, _ = tokenise([(_PROBE_TEXT,)] * num_items, form)
        return {name: tensor[:, :PROBE_TOKENS].to(device) for name, tensor in tokens.items()}
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(num_items, 3, *form.input_size, generator=generator)
    return images.to(device, dtype, memory_format=layout)


def _move(module: nn.Module, device: str, dtype: torch.dtype) -> None:
    """What `module.to(device, dtype)` does, all tensors at once."""
    own = list({id(tensor): tensor for _, tensor in all_tensors(module)}.values())
    templates = [
        torch.empty(tensor.shape, dtype=dtype if tensor.is_floating_point() else tensor.dtype, device="meta")
        for tensor in own
    ]
    made = staging_for(device).bring(own, templates)
    for tensor in made:
        if tensor.is_cuda:  # made on another stream: its memory must not be given away while this one reads it
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
    by_id = {id(tensor): moved for tensor, moved in zip(own, made, strict=True)}
    module._apply(lambda tensor: by_id.get(id(tensor), tensor))  # type: ignore[no-untyped-call]


def _without_memory(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _of_same_tensors(
    digests: Mapping[str, str], before: Mapping[str, Tensor], after: Mapping[str, Tensor]
) -> dict[str, str]:
    """The digests of those that went into the network as they were, by the names they have there."""
    known = {before[name].data_ptr(): (before[name], digest) for name, digest in digests.items() if name in before}
    found = {}
    for name, tensor in after.items():
        source, digest = known.get(tensor.data_ptr(), (None, ""))
        if source is not None and tensor.numel() and _lie_alike(source, tensor):
            found[name] = digest
    return found


def _lie_alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.stride()) == (other.shape, other.dtype, other.stride())


def _with_unsaved(anatomy: Anatomy, unsaved: Mapping[str, Tensor]) -> Anatomy:
    """Whose architecture also knows what buffers that no file holds were filled with: a configuration may decide that alone."""
    used = dict.fromkeys(name for part in anatomy.parts for name in part.tensors if name in unsaved)
    if not used:
        return anatomy
    text = " ".join([anatomy.architecture, *(f"{name} {hash_tensor(unsaved[name])}" for name in used)])
    return dataclasses.replace(anatomy, architecture=hashlib.sha256(text.encode()).hexdigest())


def _fits(blueprint: Blueprint, weights: Weights) -> bool:
    """Whether those that its parts use are there, of the shapes and types that it wants, and none that it goes without."""
    return not any(name in weights for name in blueprint.network.without) and all(
        name in weights and _describe(weights, name) == (tuple(blueprint.templates[name].shape), blueprint.kinds[name])
        for name in blueprint.used
        if name not in blueprint.unsaved
    )


def _describe(weights: Weights, name: str) -> tuple[tuple[int, ...], torch.dtype]:
    """Shape and type of one tensor, which need not be made for that where it lies in a file."""
    each = weights.place(name) if isinstance(weights, FileTensors) else weights[name]
    return tuple(each.shape), each.dtype


def _find_classifier(blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None] | None:
    layer = blueprint.network.classify
    if not isinstance(layer, nn.Linear):
        return None
    names = {id(slot): name for name, slot in blueprint.slots.items()}
    # a weight that is computed from others has no name
    weight = tensors.get(names.get(id(layer.weight), ""))
    bias = None if layer.bias is None else tensors.get(names.get(id(layer.bias), ""))
    fits = weight is not None and weight.shape[1] == layer.in_features and (layer.bias is None) == (bias is None)
    return (weight, bias) if fits and weight is not None else None


def _count_parameters(blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> int:
    return sum(math.prod(_describe(tensors, name)[0]) for name in tensors if name in blueprint.parameters)


def _fingerprint_parts(anatomy: Anatomy, hashes: Mapping[str, str]) -> tuple[str, ...]:
    fingerprints = []
    for number, part in enumerate(anatomy.parts):
        text = " ".join([anatomy.architecture, str(number), *(hashes[name] for name in part.tensors)])
        fingerprints.append(hashlib.sha256(text.encode()).hexdigest()[:32])
    return tuple(fingerprints)
