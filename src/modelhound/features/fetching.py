"""The weights of a plan's steps, brought to the device while the step before runs.

In:  the steps, for each of them the models that need it, and the Specimens of these
Out: tensors to be put into the module that a step runs, of whichever model still has them
Nothing here runs a network or knows when a step is due. Equal parts of several models are fetched once, of the first that has
them; where its file was cut short in the meantime, of another.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from modelhound.errors import ModelError, is_out_of_memory
from modelhound.features.shelf import Shelf
from modelhound.features.supply import input_key
from modelhound.features.workshop import Specimen
from modelhound.meter import Lanes
from modelhound.plan import Step

__all__ = ["Fetched", "Fetching", "name_models"]

Fetched = list[tuple[Specimen, dict[str, Tensor]]]
"""Whose tensors they are, and the tensors by name."""


class Fetching:
    """Fetches in a thread of its own. Close it, so that this ends."""

    def __init__(
        self,
        steps: Sequence[Step],
        below: Sequence[Sequence[str]],
        specimens: Mapping[str, Specimen],
        shelf: Shelf,
        *,
        device: str,
        lanes: Lanes,
    ) -> None:
        """`below` says which models need each step."""
        self._steps, self._below, self._specimens = steps, below, specimens
        self._shelf, self._device, self._lanes = shelf, device, lanes
        # by input too: what is installed for a step must go into the one module that it runs
        self._owners: dict[tuple[str, str], tuple[Specimen, int]] = {}
        for specimen in specimens.values():
            for number, fingerprint in enumerate(specimen.fingerprints):
                self._owners.setdefault((input_key(specimen.form), fingerprint), (specimen, number))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="weights ahead")
        self._fetched: dict[int, Future[Fetched]] = {}

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def owner_of(self, step: Step, place: int) -> tuple[Specimen, int]:
        """The model in whose module this segment of the step is run, and which of its parts it is."""
        return self._owners[step.input, step.segments[place].fingerprint]

    def begin(self, index: int) -> None:
        """With the weights of one step, if nobody has yet."""
        if index not in self._fetched:
            self._fetched[index] = self._thread.submit(self._fetch_now, index)

    def drop(self, is_lost: Callable[[int], bool]) -> None:
        """What nobody will take any more."""
        self._fetched = {index: each for index, each in self._fetched.items() if not is_lost(index)}

    def take(self, index: int) -> Fetched:
        """Of one step, fetched ahead or now; where there is no room for them, once more without those of other steps."""
        self.begin(index)
        try:
            return self._fetched.pop(index).result()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        self._shelf.let_go()
        if self._device != "cpu":
            torch.cuda.empty_cache()
        self.begin(index)
        return self._fetched.pop(index).result()

    def _fetch_now(self, index: int) -> Fetched:
        fetched = []
        with self._lanes.span("weights", "weights to device", name_models(self._below[index])):
            step = self._steps[index]
            for place in range(len(step.segments)):
                owner, number = self.owner_of(step, place)
                names = owner.blueprint.anatomy.parts[number].tensors
                fetched.append(self._fetch_of_any(itertools.chain([owner], self._equals(owner, number)), names))
            # Of a model that runs this step, and not of whoever else has an equal part somewhere: they belong to the first
            # part, which all models below this step have in common.
            anybody = (self._specimens[model] for model in self._below[index])
            everywhere = owner.blueprint.anatomy.everywhere
            fetched.append(self._fetch_of_any(anybody, everywhere))
        return fetched

    def _fetch_of_any(self, owners: Iterable[Specimen], names: Sequence[str]) -> tuple[Specimen, dict[str, Tensor]]:
        """Tensors that are the same in all of these, of the first whose file has not been cut short in the meantime."""
        trouble: ModelError | None = None
        for owner in owners:
            try:
                return owner, self._shelf.fetch(owner, names)
            except ModelError as error:
                trouble = trouble or error
        assert trouble is not None
        raise trouble

    def _equals(self, owner: Specimen, number: int) -> Iterator[Specimen]:
        """Other models that have the same part; in the same place, of which its fingerprint knows."""
        for other in self._specimens.values():
            is_alike = other is not owner and other.blueprint is owner.blueprint
            if is_alike and other.fingerprints[number] == owner.fingerprints[number]:
                yield other


def name_models(models: Sequence[str]) -> str:
    """Whom a step is for, in a word or two."""
    return models[0] if len(models) == 1 else f"{len(models)} models"
