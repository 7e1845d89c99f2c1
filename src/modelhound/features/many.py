"""Features of many models over one data set: survey them, plan, run.

In:  models and a data set
Out: each model's features, as soon as they are there
Nothing here scores or ranks. A Session belongs to one data set, device and precision; models are surveyed once and may be run
over several ranges of items, which is what a race does. What an earlier session has made is not made again.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch

from modelhound.compat import give_back_freed_memory
from modelhound.data import Dataset, InputForm, Tokenising, check_modality
from modelhound.features.allowance import Allowance
from modelhound.features.costing import usable_memory
from modelhound.features.engine import Request, Rows, run_plan
from modelhound.features.planner import Planner
from modelhound.features.remembered import Known, Recalled, Remembered
from modelhound.features.shelf import Shelf
from modelhound.features.supply import Supply, input_bytes, input_key
from modelhound.features.surveying import Survey
from modelhound.features.workshop import Specimen, Workshop
from modelhound.meter import Lanes
from modelhound.models import ModelRef, source_of
from modelhound.plan import Plan
from modelhound.records import Progress, Watch, silent
from modelhound.settings import ModelSettings

__all__ = ["Failed", "Session"]

Failed = Callable[[str, str, Exception], None]
"""Told of a model that cannot be used: the model, the phase it happened in, and why."""

_SHARE_OF_ITEMS = 0.25  # of the memory, what decoded items may take throughout


class Session:
    """Many models, one data set. Leave it as a context, so that its threads end."""

    def __init__(
        self,
        dataset: Dataset,
        settings: ModelSettings,
        *,
        seed: int,
        device: str,
        dtype: torch.dtype = torch.float32,
        batch: int | None = None,
        threads: int | None = None,
        memory_bytes: int | None = None,
        remember: bool = True,
        lanes: Lanes | None = None,
        watch: Watch = silent,
    ) -> None:
        self._dataset, self._settings, self._device, self._dtype = dataset, settings, device, dtype
        self._batch, self._watch, self.lanes = batch, watch, lanes or Lanes()
        self._memory_bytes = memory_bytes or usable_memory(device)
        self._lean = memory_bytes is not None and device == "cpu"
        self._allowance = Allowance(self._memory_bytes) if self._lean else None
        self._workshop = Workshop(settings, seed=seed, device=device, dtype=dtype, num_items=len(dataset), empty=True)
        self._supply = Supply(dataset, device=device, dtype=dtype, threads=threads, lanes=self.lanes, watch=watch)
        self._shelf = Shelf(device)
        self._remembered = Remembered(dataset, settings, seed=seed, device=device, dtype=dtype) if remember else None
        self._threads = threads
        self._stamps: dict[str, str] = {}
        self._refs: dict[str, ModelRef] = {}
        self._forms: list[InputForm] = []
        """What the networks that were built so far want."""
        self.specimens: dict[str, Specimen] = {}
        self.planner = Planner(
            self.specimens,
            dataset,
            device=device,
            dtype=dtype,
            batch=batch,
            memory_bytes=self._memory_bytes,
            lean=self._lean,
        )
        self.known: dict[str, Known] = {}
        """Models of which all features are remembered; their weights were not read."""
        self.seconds: dict[str, dict[str, float]] = {}
        """What reading and building each model took, by phase."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._supply.close()
        if self._remembered is not None:
            self._remembered.close()

    @property
    def trouble(self) -> str | None:
        """Why features are not remembered any more, if so."""
        return None if self._remembered is None else self._remembered.trouble

    def survey(
        self,
        models: Mapping[ModelRef, str],
        *,
        failed: Failed,
        forms_known: Callable[[], None] = lambda: None,
        shortcut: bool = True,
    ) -> None:
        """Take all models apart, each given with its stamp.

        With `shortcut`, models whose features are all remembered are left whole. `forms_known` is called as soon as it
        is clear in which forms the items are wanted.
        """
        self._stamps = {str(model): stamp for model, stamp in models.items()}
        self._refs = {str(model): model for model in models}
        self.seconds = {str(model): {} for model in models}
        if shortcut:
            self._recognise(models)
        unknown = [model for model in models if str(model) not in self.known]
        check = functools.partial(check_modality, self._dataset)
        with Survey(unknown, self._workshop, self._settings, lanes=self.lanes, check=check) as survey:
            self._forms = survey.forms
            taken = survey.take_apart(forms_known)
            for done, model in enumerate((*survey.firsts, *survey.others)):
                self._watch(Progress(task="reading models", done=done, total=len(unknown), detail=str(model)))
                found = next(taken)
                if found.specimen is not None:
                    self.specimens[str(model)] = found.specimen
                if found.error is not None:
                    failed(str(model), found.phase, found.error)
                if self._lean:
                    give_back_freed_memory()
                self.seconds[str(model)] = found.seconds
        self._watch(Progress(task="reading models", done=len(unknown), total=len(unknown)))

    def expect_all(self, order: Sequence[int]) -> None:
        """Begin to decode all items for the networks built so far, if there is room to keep them."""
        # texts are small, and tokenised when their turn comes
        forms = {input_key(form): form for form in self._forms if not isinstance(form, Tokenising)}
        num_bytes = len(order) * sum(input_bytes(form) for form in forms.values())
        if self._device != "cpu" and forms and num_bytes < _SHARE_OF_ITEMS * self._memory_bytes:
            self.planner.set_aside(num_bytes)
            self._supply.expect_all(order, forms)

    def set_aside(self, share: float) -> int:
        """Of the memory this much, in bytes, that plans made later leave alone."""
        num_bytes = int(share * self._memory_bytes)
        self.planner.set_aside(num_bytes)
        return num_bytes

    def calibrate(self, *, failed: Failed) -> None:
        """Measure how fast the parts of all models run and how fast items are fed; plans made later rest on it."""

        def lose(model: str, phase: str, error: Exception) -> None:
            failed(model, phase, error)
            self.let_go(model)

        self.planner.calibrate(self._supply, self._shelf, failed=lose, threads=self._threads, watch=self._watch)

    def run(
        self,
        models: Sequence[str],
        items: range,
        order: Sequence[int],
        *,
        done: Callable[[str, Rows, Callable[[], None]], None],
        failed: Failed,
        planned: Callable[[Plan], None] = lambda plan: None,
    ) -> None:
        """Features of these models for the items with these numbers; `order` says which position of the data set each has.

        `done` gets the model, its rows, and a function that remembers them for later sessions, to be called at leisure.
        """
        positions = [order[item] for item in items]
        groups: dict[tuple[int, ...], list[str]] = {}
        recalled: dict[str, Recalled] = {}
        for model in models:
            found = self._recall(model, positions)
            if found is not None and not found.missing:
                done(model, self._as_rows(model, found.rows), lambda: None)
                continue
            if model in self.known and not self._take_apart_after_all(model, failed):
                continue
            if found is not None and found.there:
                recalled[model] = found
            groups.setdefault(found.missing if found is not None else tuple(range(len(items))), []).append(model)
        for missing, group in groups.items():
            whole = len(missing) == len(items)
            places = order if whole else [positions[place] for place in missing]
            plan = self.planner.plan(group, items if whole else range(len(missing)))
            planned(plan)

            def hand_on(model: str, rows: Rows) -> None:
                if self._lean:
                    give_back_freed_memory()  # scoring takes other pieces than running
                found = recalled.pop(model, None)  # no longer needed, and large
                made = positions if found is None else [positions[place] for place in found.missing]
                keep = functools.partial(self._keep, self.specimens[model], made, rows.features)
                done(model, self._complete(model, rows, found, len(items)), keep)

            run_plan(plan, self._request(places), done=hand_on, failed=failed)

    def let_go(self, model: str) -> None:
        """This model is not run any more: its weights need not be held."""
        self.specimens.pop(model, None)

    def name_of(self, model: str) -> str | None:
        """Under which the features of this model are kept; None where nothing is remembered."""
        if self._remembered is None:
            return None
        known = self.known.get(model)
        return known.kept_as if known else self._remembered.name(self.specimens[model], self._stamps[model])

    def recall(self, model: str) -> torch.Tensor | None:
        """All features of a model in the order of the data set, where they are remembered and sound."""
        found = self._recall(model, range(len(self._dataset)))
        return None if found is None or found.missing else self._as_rows(model, found.rows).features

    def _take_apart_after_all(self, model: str, failed: Failed) -> bool:
        """For a model that was left whole, because all of its rows were there, and now some turn out to be damaged."""
        ref = self._refs[model]
        try:
            weights = None if self._settings.weights == "random" else source_of(ref).read_weights(ref.name)
            self.specimens[model] = self._workshop.take_apart(ref, weights, dict)
        except Exception as error:  # whatever a stranger's model raises, the others go on
            failed(model, "read weights", error)
            return False
        del self.known[model]
        return True

    def _request(self, order: Sequence[int]) -> Request:
        return Request(
            specimens=self.specimens,
            supply=self._supply,
            shelf=self._shelf,
            order=order,
            device=self._device,
            batch=self._batch,
            lean=self._lean,
            tidy=self._allowance.tidy if self._allowance is not None else lambda coming_bytes: None,
            lanes=self.lanes,
            watch=self._watch,
        )

    def _recognise(self, models: Mapping[ModelRef, str]) -> None:
        """Find the models of which everything is remembered."""
        if self._remembered is None:
            return
        everything = range(len(self._dataset))
        for model, stamp in models.items():
            if self._is_made_by_own_code(model):
                continue
            known = self._remembered.known(model, stamp)
            if known is not None and self._remembered.has(known.kept_as, everything):
                self.known[str(model)] = known

    def _is_made_by_own_code(self, model: ModelRef) -> bool:
        """Whose stamp does not tell of other files that the code reads, such as of its weights: only taking it apart does."""
        return model.source == "py" or (model.source == "file" and (self._settings.arch or "").startswith("py:"))

    def _recall(self, model: str, positions: Sequence[int]) -> Recalled | None:
        kept_as = self.name_of(model)
        if self._remembered is None or kept_as is None:
            return None
        return self._remembered.recall(kept_as, positions)

    def _as_rows(self, model: str, rows: torch.Tensor) -> Rows:
        layers = self._num_layers(model)
        return Rows(
            features=rows.view(len(rows), layers, -1) if layers else rows,
            num_truncated=None,
            seconds=dict,
        )

    def _num_layers(self, model: str) -> int:
        """0 where an item has one row; else how many."""
        if model in self.known:
            return self.known[model].num_layers
        shape = self.specimens[model].blueprint.anatomy.result_shape
        return shape[0] if len(shape) == 2 else 0

    def _complete(self, model: str, rows: Rows, recalled: Recalled | None, num_items: int) -> Rows:
        """Rows that were made and rows that were there, in order."""
        if recalled is None:
            return rows
        there = self._as_rows(model, recalled.rows).features
        features = rows.features.new_empty((num_items, *rows.features.shape[1:]))
        features[torch.tensor(recalled.there, device=features.device)] = there
        features[torch.tensor(recalled.missing, device=features.device)] = rows.features
        return dataclasses.replace(rows, features=features, num_truncated=None)

    def _keep(self, specimen: Specimen, positions: Sequence[int], features: torch.Tensor) -> None:
        stamp = self._stamps[str(specimen.model)]
        kept_as = None if self._remembered is None else self._remembered.name(specimen, stamp)
        if self._remembered is None or kept_as is None or not bool(torch.isfinite(features).all()):
            return
        known = Known(
            kept_as=kept_as,
            num_parameters=specimen.num_parameters,
            num_layers=features.shape[1] if features.ndim == 3 else 0,
        )
        self._remembered.keep(kept_as, positions, features)
        self._remembered.note(specimen.model, stamp, known)
