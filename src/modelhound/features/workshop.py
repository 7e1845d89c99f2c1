"""Where many networks are taken apart and put together again: one module per architecture, and each tensor once.

In:  models, with their weights or with random ones
Out: a Specimen of each: its parts with fingerprints, and tensors that can be put into the one module of its architecture
Nothing here knows items, plans or scores.

Two parts with the same fingerprint give the same output for the same input: it is a hash over the architecture, the place in
it, and the content of every tensor the part uses, BatchNorm's statistics included. Equal tensors of different models are kept
once. A module is built for the first model of an architecture; for the others only their tensors are read.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modelhound.data import InputForm, Tokenising
from modelhound.data.tokenising import tokenise
from modelhound.features.plain import build_network
from modelhound.models import ModelRef, Network, Weights, source_of
from modelhound.models.parts import PROBE_TOKENS, Anatomy, all_tensors, dissect
from modelhound.settings import ModelSettings

__all__ = ["Blueprint", "Specimen", "Workshop", "hash_tensor", "install"]

_PROBE_ITEMS = 2
_PROBE_TEXT = "what does it say " * PROBE_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blueprint:
    """One architecture: the module that all of its models take turns in."""

    network: Network
    anatomy: Anatomy
    slots: Mapping[str, Tensor] = field(repr=False)
    """The module's parameters and buffers by name."""
    kinds: Mapping[str, torch.dtype] = field(repr=False)
    """The types these had before they were brought to the device."""
    parameters: frozenset[str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Specimen:
    """One model, taken apart."""

    model: ModelRef
    blueprint: Blueprint
    form: InputForm
    num_parameters: int
    tensors: Mapping[str, Tensor] = field(repr=False)
    """All that its parts use, by name, on the device."""
    fingerprints: tuple[str, ...]
    """One per part."""
    classifier: tuple[Tensor, Tensor | None] | None
    """Weight and bias of the linear layer from features to the classes it was trained on, where it has one; on the host."""

    @property
    def fingerprint(self) -> str:
        """Of the whole model."""
        return hashlib.sha256("".join(self.fingerprints).encode()).hexdigest()


class Workshop:
    """Takes models apart for one device and precision."""

    def __init__(self, settings: ModelSettings, *, seed: int, device: str, dtype: torch.dtype) -> None:
        self._settings, self._seed, self.device, self.dtype = settings, seed, device, dtype
        self._by_mould: dict[str, Blueprint] = {}
        self._by_architecture: dict[str, Blueprint] = {}
        self._known: dict[tuple[str, str], Tensor] = {}

    def take_apart(self, model: ModelRef, weights: Weights | None, hashes: Mapping[str, str]) -> Specimen:
        """The parts of one model; `weights` as its source reads them with the hash of each, or None for random ones."""
        mould = source_of(model).mould(model.name, self._settings)
        blueprint = self._by_mould.get(mould) if mould else None
        tensors: Mapping[str, Tensor]
        if blueprint is not None and weights is not None and _fits(blueprint, weights):
            tensors = weights
        else:
            blueprint, tensors = self._build(model, mould, weights)
            hashes = {}  # building may have renamed or converted them
        used = {name for part in blueprint.anatomy.parts for name in part.tensors}
        own = {name: tensors.get(name, blueprint.slots[name]) for name in blueprint.slots if name in used}
        hashes = {name: hashes.get(name) or hash_tensor(tensor) for name, tensor in own.items()}
        return Specimen(
            model=model,
            blueprint=blueprint,
            form=blueprint.network.preprocessing,
            num_parameters=_count_parameters(blueprint, tensors),
            tensors={name: self._keep(blueprint, name, hashes[name], tensor) for name, tensor in own.items()},
            fingerprints=_fingerprint_parts(blueprint.anatomy, hashes),
            classifier=_find_classifier(blueprint, tensors),
        )

    def _build(
        self, model: ModelRef, mould: str | None, weights: Weights | None
    ) -> tuple[Blueprint, Mapping[str, Tensor]]:
        """Build the network; it becomes the blueprint of its architecture unless there is one."""
        network = build_network(model, weights, self._settings, seed=self._seed)
        # hashed as they came: what rounding makes of them depends on the device
        tensors = {name: tensor.detach() for name, tensor in all_tensors(network.module)}
        copies = {name: tensor.to(self.device, copy=True) for name, tensor in tensors.items()}
        network.module.to(self.device, self.dtype).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        anatomy = dissect(network, self._probe(network.preprocessing))
        blueprint = self._by_architecture.setdefault(
            f"{anatomy.architecture} {network.preprocessing}",
            Blueprint(
                network=network,
                anatomy=anatomy,
                slots=dict(all_tensors(network.module)),
                kinds={name: tensor.dtype for name, tensor in tensors.items()},
                parameters=frozenset(name for name, _ in network.module.named_parameters(remove_duplicate=False)),
            ),
        )
        if mould is not None:
            self._by_mould.setdefault(mould, blueprint)
        return blueprint, copies

    def _keep(self, blueprint: Blueprint, name: str, digest: str, tensor: Tensor) -> Tensor:
        """The one copy of this tensor, as the device wants it."""
        key = (blueprint.anatomy.architecture + name, digest)
        if key not in self._known:
            # in the order in memory that the module's own tensor has: other orders would call other kernels
            self._known.setdefault(key, torch.empty_like(blueprint.slots[name]).copy_(tensor))
        return self._known[key]

    def _probe(self, form: InputForm) -> Any:
        """A small batch of made-up items."""
        if isinstance(form, Tokenising):
            tokens, _ = tokenise([(_PROBE_TEXT,)] * _PROBE_ITEMS, form)
            return {name: tensor[:, :PROBE_TOKENS].to(self.device) for name, tensor in tokens.items()}
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(_PROBE_ITEMS, 3, *form.input_size, generator=generator)
        return images.to(self.device, self.dtype, memory_format=torch.channels_last)


def install(specimen: Specimen, names: Sequence[str]) -> None:
    """Put some of a model's tensors into the module of its architecture."""
    slots = specimen.blueprint.slots
    for name in names:
        slots[name].data = specimen.tensors[name]


def _fits(blueprint: Blueprint, weights: Weights) -> bool:
    """Whether the tensors can go into the module as they are: those of the parts have their names and shapes."""
    saved = set(blueprint.network.module.state_dict(keep_vars=True))
    used = {name for part in blueprint.anatomy.parts for name in part.tensors}
    return all(
        name in weights
        and weights[name].shape == blueprint.slots[name].shape
        and weights[name].dtype == blueprint.kinds[name]
        for name in used
        if name in saved
    )


def _find_classifier(blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None] | None:
    layer = blueprint.network.classify
    if not isinstance(layer, nn.Linear):
        return None
    names = {id(slot): name for name, slot in blueprint.slots.items()}
    weight = tensors.get(names[id(layer.weight)])
    bias = None if layer.bias is None else tensors.get(names[id(layer.bias)])
    fits = weight is not None and weight.shape[1] == layer.in_features and (layer.bias is None) == (bias is None)
    return (weight, bias) if fits and weight is not None else None


def _count_parameters(blueprint: Blueprint, tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for name, tensor in tensors.items() if name in blueprint.parameters)


def hash_tensor(tensor: Tensor) -> str:
    """Over shape, type and content, whatever the order in memory."""
    plain = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{tuple(plain.shape)} {plain.dtype}".encode())
    digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _fingerprint_parts(anatomy: Anatomy, hashes: Mapping[str, str]) -> tuple[str, ...]:
    fingerprints = []
    for number, part in enumerate(anatomy.parts):
        text = " ".join([anatomy.architecture, str(number), *(hashes[name] for name in part.tensors)])
        fingerprints.append(hashlib.sha256(text.encode()).hexdigest()[:32])
    return tuple(fingerprints)
