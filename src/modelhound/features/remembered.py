"""Features that an earlier search has made.

In:  a Specimen, or a model with its stamp
Out: under which name its features are kept; the rows that are there
Nothing here runs a network. A name stands for everything that decides a row beside the item: tensors, architecture, pooling,
preprocessing, precision, kind of device, who multiplies there, and the code that runs it, of libraries and ours. Batch size and
neighbours do not.
"""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch
from torch import Tensor

from modelhound import __version__
from modelhound.data import Dataset, OwnTransform
from modelhound.errors import StoreError
from modelhound.feature_store import FeatureStore
from modelhound.features.supply import input_key
from modelhound.features.workshop import Specimen
from modelhound.meter import digest_of_code, installed_version
from modelhound.models import ModelRef
from modelhound.models.code import LIBRARIES
from modelhound.models.computing import linear_library
from modelhound.settings import ModelSettings
from modelhound.store import Memo

__all__ = ["Known", "Recalled", "Remembered"]

_ROOMS = ("data", "features", "models")  # whose code decides a feature


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """What must be known of a model to use its features without its weights."""

    kept_as: str
    num_parameters: int
    num_layers: int
    """0 where an item has one row; else how many."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Recalled:
    """Rows of some of the items asked for, and the places among them that have none."""

    rows: Tensor
    there: Sequence[int]
    missing: tuple[int, ...]


class Remembered:
    """What is known of models over one data set, at one precision."""

    def __init__(
        self, dataset: Dataset, settings: ModelSettings, *, seed: int, device: str, dtype: torch.dtype
    ) -> None:
        self._dataset, self._device, self._dtype = dataset, device, dtype
        self._store = FeatureStore()
        made_on = " ".join(f"{name} {installed_version(name)}" for name in LIBRARIES)
        random = f"random {seed}" if settings.weights == "random" else "trained"
        self._how = (
            f"{device.partition(':')[0]} {dtype} {settings.pooling} {settings.layers} {settings.tokens} {settings.arch} "
            f"{random} {made_on} {linear_library(device)} {digest_of_code(*_ROOMS)}"
        )
        self._memo = Memo(f"models-{__version__}")

    @property
    def trouble(self) -> str | None:
        """Why nothing more is kept, in a sentence; None as long as all is well."""
        return self._store.trouble

    def name(self, specimen: Specimen, stamp: str) -> str | None:
        """Under which its features are kept; None where nobody could tell later whether they would be the same."""
        if isinstance(specimen.form, OwnTransform):
            return None
        # a function of the user may do anything to its network
        made_by = stamp if specimen.model.source == "py" else ""
        return f"{specimen.fingerprint} {input_key(specimen.form)} {made_by} {self._how}"

    def known(self, model: ModelRef, stamp: str) -> Known | None:
        """What an earlier search has noted of this model with these weights."""
        fact = self._memo.look_up(self._key(model, stamp))
        try:
            return None if fact is None else msgspec.convert(fact, Known)
        except msgspec.ValidationError:
            return None

    def note(self, model: ModelRef, stamp: str, known: Known) -> None:
        self._memo.note(self._key(model, stamp), msgspec.to_builtins(known))

    def has(self, kept_as: str, positions: Sequence[int]) -> bool:
        """Whether there are rows of all these items, as far as can be told without reading them."""
        return self._store.holds(kept_as, self._digests(positions))

    def recall(self, kept_as: str, positions: Sequence[int]) -> Recalled:
        """Rows of the items at these positions of the data set, on the device; float32, one row per item."""
        found = self._store.read(kept_as, self._digests(positions))
        rows = torch.from_numpy(found.rows.view(np.int16) if found.rows.dtype == np.uint16 else found.rows)
        if found.rows.dtype == np.uint16:
            rows = rows.view(torch.bfloat16)
        return Recalled(
            rows=rows.to(self._device).float(),
            there=found.positions.tolist(),
            missing=tuple(found.missing.tolist()),
        )

    def keep(self, kept_as: str, positions: Sequence[int], rows: Tensor) -> None:
        """Remember the rows of these items; does nothing where the disk does not take them (see `trouble`)."""
        flat = rows.flatten(1)
        kinds = [flat.cpu().numpy()]
        halved = flat.to(torch.bfloat16)
        if self._dtype is torch.bfloat16 and bool((halved.float() == flat).all()):  # half the bytes say as much
            kinds.insert(0, halved.cpu().view(torch.int16).numpy().view(np.uint16))
        for plain in kinds:
            with contextlib.suppress(StoreError):  # those of other items may be of the other kind, and one name has one
                self._store.write(kept_as, self._digests(positions), np.ascontiguousarray(plain))
                return

    def close(self) -> None:
        self._store.close()

    def _digests(self, positions: Sequence[int]) -> list[str]:
        return [self._dataset.digests[position] for position in positions]

    def _key(self, model: ModelRef, stamp: str) -> str:
        text = f"{model} {stamp} {self._dataset.modality} {self._how}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]
