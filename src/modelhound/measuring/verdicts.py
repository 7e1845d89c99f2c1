"""What earlier searches have found out about features that are remembered.

In:  the name under which a model's features are kept; scores and what was found on the way to them
Out: the scores, where the same was asked of the same items before; else what does not depend on labels (`Groundwork`), so that
     new labels cost little
Nothing here scores. Everything is kept in the feature store, under a name that changes with whatever decides it: the features,
the items, the labels, the scorers and their code. What is damaged or gone is found out again.
"""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch

from modelhound.data import Dataset, InputForm, Tokenising
from modelhound.data.tokens import tokenise_once
from modelhound.feature_store import FeatureStore
from modelhound.meter import digest_of_code
from modelhound.records import pack_items, unpack_items
from modelhound.scores import Groundwork, Score, Scores
from modelhound.scores.groundwork import Nearest, Spectrum

__all__ = ["Judged", "Verdicts"]

_WORTH_KEEPING = 2000  # items: with fewer, to find the groundwork again takes no longer than to read it
_CANNOT_KEEP = "leep"  # which asks the network's own classifier: not part of what features are kept under


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What all scorers made of the best layer of a model."""

    scores: Scores
    layer: int
    num_features: int


class _Told(msgspec.Struct, frozen=True, kw_only=True):
    """Judged, as it is kept."""

    values: dict[str, tuple[float, bytes | None]]
    missing: dict[str, str]
    layer: int
    num_features: int


class Verdicts:
    """Of one data set, its labels and the scorers asked for. Close it when done."""

    def __init__(self, dataset: Dataset, scorers: Sequence[str], *, seed: int, device: str, remember: bool) -> None:
        self._dataset = dataset
        self._asked = f"{' '.join(scorers)} {seed} {dataset.task} {len(dataset.class_names)}"
        self._has_groundwork = remember and device == "cpu" and len(dataset) >= _WORTH_KEEPING
        self._store = FeatureStore() if remember and _CANNOT_KEEP not in scorers else None

    def recall(self, kept_as: str | None) -> Judged | None:
        """What was found when the same was asked of the same items with the same labels."""
        told = self._read(self._name_scores(kept_as), _Told)
        if told is None:
            return None
        values = {
            name: Score(value, None if items is None else unpack_items(items))
            for name, (value, items) in told.values.items()
        }
        scores = Scores(values=values, missing=told.missing)
        return Judged(scores=scores, layer=told.layer, num_features=told.num_features)

    def keep(self, kept_as: str | None, judged: Judged) -> None:
        values = {
            name: (each.value, None if each.item_scores is None else pack_items(each.item_scores))
            for name, each in judged.scores.values.items()
        }
        told = _Told(values=values, missing=judged.scores.missing, layer=judged.layer, num_features=judged.num_features)
        self._write(self._name_scores(kept_as), told)

    def texts_cut(self, kept_as: str | None, form: InputForm | None, seen: int | None) -> tuple[int, int | None]:
        """How many of the texts this model's tokenizer has cut, and to how many tokens.

        `seen` is how many were cut just now, or None where some of the features are remembered: then they are counted, if
        nobody has written it down. `form` is None where the model was not looked at, since all of its features are remembered.
        """
        if self._dataset.modality != "text":
            return 0, None
        name = None if kept_as is None else f"texts cut {kept_as} {self._items}"
        before: tuple[int, int | None] | None = self._read(name, tuple[int, int | None])
        if before is not None or not isinstance(form, Tokenising):
            return before or (0, None)
        num_cut = tokenise_once(self._dataset, [form])[form].num_truncated if seen is None else seen
        if num_cut:
            self._write(name, (num_cut, form.max_tokens))
        return num_cut, form.max_tokens

    def groundwork(self, kept_as: str | None, layer: int) -> Groundwork:
        """What is known of these features whatever the labels are; nothing, where nothing is."""
        known = self._read(self._name_groundwork(kept_as, layer), dict[str, tuple[str, tuple[int, ...], bytes]])
        return Groundwork() if known is None else _unpack(known, self._order)

    def keep_groundwork(self, kept_as: str | None, layer: int, groundwork: Groundwork) -> None:
        name = self._name_groundwork(kept_as, layer)
        if name is not None and groundwork.spectrum is not None and groundwork.spectrum.right is not None:
            self._write(name, _pack(groundwork, self._order))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def _read(self, name: str | None, kind: Any) -> Any:
        if name is None or self._store is None:
            return None
        content = self._store.read_parcel(name)
        try:
            return None if content is None else msgspec.msgpack.decode(content, type=kind)
        except msgspec.DecodeError:  # whole, but of another making
            return None

    def _write(self, name: str | None, content: Any) -> None:
        if name is not None and self._store is not None:
            self._store.write_parcel(name, msgspec.msgpack.encode(content))

    def _name_scores(self, kept_as: str | None) -> str | None:
        return None if kept_as is None else f"scores {_code()} {kept_as} {self._asked} {self._labelled}"

    def _name_groundwork(self, kept_as: str | None, layer: int) -> str | None:
        if kept_as is None or not self._has_groundwork:
            return None
        return f"groundwork {_code()} {kept_as} {layer} {self._items}"

    @functools.cached_property
    def _order(self) -> torch.Tensor:
        """Positions in an order that does not depend on names or labels."""
        digests = self._dataset.digests
        return torch.tensor(sorted(range(len(digests)), key=digests.__getitem__))

    @functools.cached_property
    def _items(self) -> str:
        return hashlib.sha256("\0".join(sorted(self._dataset.digests)).encode()).hexdigest()

    @functools.cached_property
    def _labelled(self) -> str:
        """Of the items in their order, with their labels."""
        digest = hashlib.sha256("\0".join(self._dataset.digests).encode())
        digest.update(np.ascontiguousarray(self._dataset.targets).tobytes())
        return digest.hexdigest()


def _pack(groundwork: Groundwork, order: torch.Tensor) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tensors by name; neighbours as places in `order`."""
    found = {"mean": groundwork.mean, "scatter": groundwork.scatter}
    if groundwork.spectrum is not None:
        found |= {"values": groundwork.spectrum.values, "right": groundwork.spectrum.right}
    if groundwork.nearest is not None:
        places = torch.empty_like(order)
        places[order] = torch.arange(len(order))
        found["similar"] = groundwork.nearest.similar[order]
        found["neighbours"] = places[groundwork.nearest.neighbours[order]].int()
    if groundwork.freedoms is not None:
        found["freedoms"] = groundwork.freedoms[order]
    arrays = {name: np.ascontiguousarray(each.numpy()) for name, each in found.items() if each is not None}
    return {name: (str(each.dtype), each.shape, each.tobytes()) for name, each in arrays.items()}


def _unpack(known: dict[str, tuple[str, tuple[int, ...], bytes]], order: torch.Tensor) -> Groundwork:
    found = {
        name: torch.from_numpy(np.frombuffer(bytearray(content), dtype).reshape(shape))
        for name, (dtype, shape, content) in known.items()
    }
    nearest = spectrum = freedoms = None
    if "freedoms" in found:
        freedoms = torch.empty_like(found["freedoms"])
        freedoms[order] = found["freedoms"]
    if "neighbours" in found:
        similar = torch.empty_like(found["similar"])
        neighbours = torch.empty(similar.shape, dtype=torch.int64)
        similar[order] = found["similar"]
        neighbours[order] = order[found["neighbours"].long()]
        nearest = Nearest(similar, neighbours)
    if "right" in found:
        spectrum = Spectrum(values=found["values"], right=found["right"], left=None)
    return Groundwork(
        mean=found.get("mean"),
        scatter=found.get("scatter"),
        spectrum=spectrum,
        nearest=nearest,
        freedoms=freedoms,
    )


def _code() -> str:
    """Of the scorers."""
    return digest_of_code("scores")
