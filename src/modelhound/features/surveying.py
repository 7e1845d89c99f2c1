"""Many models taken apart: of each kind one first, then the others, whose weights are read and hashed meanwhile.

In:  models, and a workshop for one device and precision
Out: for each of them what came of it: a Specimen, or what went wrong; and what that took, by phase
Nothing here knows items or plans, or what is remembered.
"""

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from modelhound.data import InputForm
from modelhound.features.reading import Reading
from modelhound.features.workshop import Specimen, Workshop
from modelhound.meter import Lanes, Meter
from modelhound.models import ModelRef
from modelhound.settings import ModelSettings

__all__ = ["Survey", "Taken"]

_KINDS_AT_ONCE = {"cpu": 1, "cuda": 3}  # on a device their first passes mostly wait for kernels to be loaded


@dataclass(frozen=True, slots=True)
class Taken:
    """What came of one model."""

    specimen: Specimen | None
    error: Exception | None
    phase: str
    """In which the error happened."""
    seconds: dict[str, float]


class Survey:
    """Takes models apart. Leave it as a context, so that its threads end."""

    def __init__(
        self,
        models: Sequence[ModelRef],
        workshop: Workshop,
        settings: ModelSettings,
        *,
        lanes: Lanes,
        check: Callable[[InputForm], None],
    ) -> None:
        """`check` raises if there are no items in the form that a network wants."""
        self._workshop, self._lanes, self._check = workshop, lanes, check
        self.firsts, self.others = self._split_by_mould(models)
        """One model of each kind, and the others, in the order in which they are taken apart."""
        self.forms: list[InputForm] = []
        """What the networks that were built so far want."""
        self._reading = Reading(settings, lanes)

    def __enter__(self) -> Self:
        self._reading.begin((*self.firsts, *self.others))
        return self

    def __exit__(self, *error: object) -> None:
        self._reading.__exit__(*error)

    def take_apart(self, forms_known: Callable[[], None]) -> Iterator[Taken]:
        """All of them, in order; where a device does the work, the first of each kind several at a time.

        `forms_known` is called when one of each kind has said what it wants. Where several are taken apart at a time, that is
        when they are built: a device may decode items meanwhile, which takes as long.
        """
        at_once = _KINDS_AT_ONCE[self._workshop.device.partition(":")[0]]
        if at_once == 1:
            for num_taken, model in enumerate(self.firsts, start=1):
                each = self._take_apart(model)
                if num_taken == len(self.firsts):
                    forms_known()
                yield each
        else:
            built = [threading.Event() for _ in self.firsts]
            with ThreadPoolExecutor(at_once, thread_name_prefix="take apart") as hands:
                taken = hands.map(self._take_apart, self.firsts, built)
                for event in built:
                    event.wait()
                forms_known()
                yield from taken
        yield from map(self._take_apart, self.others)

    def _take_apart(self, model: ModelRef, built: threading.Event | None = None) -> Taken:
        """`built` is set as soon as it is known what the network wants, or that nobody will know."""

        def note(form: InputForm) -> None:
            self._check(form)
            self.forms.append(form)
            if built is not None:
                built.set()

        meter = Meter(self._workshop.device, keep_peak=True)
        specimen, failure = None, None
        try:
            with meter.phase("read weights", on_host=True), self._lanes.span("models", "wait for weights"):
                weights = self._reading.weights(model)
            with meter.phase("build model", on_host=True), self._lanes.span("models", "build model", str(model)):
                digests = functools.partial(self._reading.digests, model)
                specimen = self._workshop.take_apart(model, weights, digests, note)
        except Exception as error:  # whatever a stranger's model raises, the others go on
            failure = error
        finally:
            if built is not None:
                built.set()
        self._reading.end(model)
        return Taken(specimen, failure, meter.current_phase, {each.phase: each.total for each in meter.samples})

    def _split_by_mould(self, models: Sequence[ModelRef]) -> tuple[list[ModelRef], list[ModelRef]]:
        """Of an unknown kind each is one of its own."""
        firsts: dict[str, ModelRef] = {}
        others = []
        for model in models:
            try:
                mould = self._workshop.mould(model) or str(model)
            except Exception:  # it will fail again when its turn comes
                mould = str(model)
            if mould in firsts:
                others.append(model)
            else:
                firsts[mould] = model
        return list(firsts.values()), others
