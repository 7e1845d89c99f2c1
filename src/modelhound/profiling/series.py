"""Every model on every data set and device, configuration after configuration.

In:  what was asked, data sets, an open run folder
Out: a record of every configuration, kept in the run folder as soon as it is there; a Failure for whatever could not
Nothing here times anything (see `jobs`) or knows what follows. What an earlier start has measured is not measured again.
"""

import random
from collections.abc import Sequence
from pathlib import Path

from modelhound.data import Dataset, modality_of
from modelhound.errors import RequestError, StoreError, explain_error
from modelhound.models import ModelRef, source_of, stamp_own
from modelhound.profiling.benches import Bench, prepare_bench
from modelhound.profiling.configurations import Configuration, configurations_of
from modelhound.profiling.jobs import profile_configuration
from modelhound.profiling.rounds import Round, in_order
from modelhound.profiling.staging import open_stage
from modelhound.records import ConfigurationProfiled, Failure, Progress, ScoringTimed, Watch
from modelhound.settings import LoaderSettings, ProfileSettings
from modelhound.store import RunFolder

__all__ = ["Series"]


class Series:
    """One run: what is known, what is still to be measured."""

    def __init__(
        self,
        *,
        settings: ProfileSettings,
        loader: LoaderSettings | None,
        datasets: Sequence[Dataset],
        devices: Sequence[str],
        folder: Path,
        run: RunFolder,
        watch: Watch,
    ) -> None:
        self._settings, self._loader, self._datasets, self._devices = settings, loader, datasets, devices
        self._folder, self._run, self._watch = folder, run, watch
        self._known = {record.key: record for record in run.read(ConfigurationProfiled)}
        self._rounds: list[Round] = []
        self._done = 0.0
        self.records: list[ConfigurationProfiled] = []
        self.failures: list[Failure] = []
        self.num_resumed = 0

    def prepare(self, models: Sequence[ModelRef], head_models: Sequence[ModelRef]) -> None:
        """Take every model apart and see what there is to do; a part that no model has is refused before anything is run."""
        missing: dict[str, list[Failure]] = {}
        available: set[str] = set()
        for done, model in enumerate(models):
            self._watch(Progress(task="taking models apart", done=done, total=len(models), detail=str(model)))
            try:
                stamp = " ".join(filter(None, map(self._stamp, (model, *head_models))))
                bench = prepare_bench(
                    model, self._settings, self._folder, head_models=head_models, datasets=self._datasets
                )
                found, lacking = configurations_of(bench, self._settings)
            except (RequestError, StoreError):
                raise
            except Exception as error:  # whatever a stranger's model raises, the others go on
                self._fail(Failure(model=str(model), phase="build model", error=explain_error(error)))
                continue
            available |= {each.name for each in found}
            for name, lack in lacking:
                missing.setdefault(name, []).append(Failure(model=str(model), phase=name, error=str(lack)))
            self._add_rounds(bench, stamp, found)
        self._watch(Progress(task="taking models apart", done=len(models), total=len(models)))
        for name, failures in missing.items():
            if name not in available:
                raise RequestError(failures[0].error)
            for failure in failures:
                self._fail(failure)

    def _stamp(self, model: ModelRef) -> str:
        """Changes with its weights, or where these are random with its code."""
        if self._settings.weights == "pretrained":
            return source_of(model).stamp(model.name, self._settings)
        return stamp_own(model, self._settings)

    def _add_rounds(self, bench: Bench, stamp: str, found: Sequence[Configuration]) -> None:
        suited = [dataset for dataset in self._datasets if dataset.modality == modality_of(bench.form)]
        if not suited:
            raise RequestError(
                f"cannot profile {bench.model} on {self._settings.data!r}: expected {modality_of(bench.form)}s, "
                "add a data set of these with --also, or leave the model out"
            )
        for dataset in suited:
            for device in self._devices:
                todo = []
                for each in found:
                    known = self._known.get("\0".join((bench.model, each.name, dataset.name, device)))
                    if known is not None and known.stamp == stamp:
                        self.records.append(known)
                        self.num_resumed += 1
                    else:
                        todo.append(each)
                if todo:
                    self._rounds.append(Round(bench, stamp, dataset, device, tuple(todo)))

    def measure(self) -> None:
        """Round after round; within a round the configurations in an order drawn by the seed."""
        total = sum(each.cost for each in self._rounds)
        for each in self._rounds:
            self._tell(total, each.bench.model)
            before = self._done
            self._measure_round(each, total)
            self._done = before + each.cost
        self._watch(Progress(task="profiling, %", done=100, total=100))
        self.records = in_order(self.records, self._settings, self._devices)

    def _measure_round(self, each: Round, total: float) -> None:
        configurations = list(each.configurations)
        random.Random(self._settings.seed).shuffle(configurations)
        try:
            opened = open_stage(
                each.bench,
                each.dataset,
                self._settings,
                each.configurations,
                stamp=each.stamp,
                device=each.device,
                folder=self._folder,
                loader=self._loader,
                watch=self._watch,
            )
        except (RequestError, StoreError):
            raise
        except Exception as error:  # a network that does not fit into memory, say
            self._fail(Failure(model=each.bench.model, phase="storing outputs", error=explain_error(error)))
            return
        with opened as stage:
            for configuration in configurations:
                self._tell(total, f"{each.bench.model} {configuration.name}")
                try:
                    record = profile_configuration(configuration, stage, scorings=self._scorings_of(each))
                except (RequestError, StoreError):
                    raise
                except Exception as error:  # the other configurations go on
                    self._fail(Failure(model=each.bench.model, phase=configuration.name, error=explain_error(error)))
                else:
                    self._run.append(record)
                    self.records.append(record)
                self._done += each.cost / len(configurations)

    def _scorings_of(self, each: Round) -> tuple[ScoringTimed, ...]:
        """What another configuration of the same model has found out already."""
        place = (each.bench.model, each.dataset.name, each.device)
        known = (record.scorings for record in self.records if (record.model, record.data, record.device) == place)
        return next(known, ())

    def _tell(self, total: float, detail: str) -> None:
        self._watch(Progress(task="profiling, %", done=int(100 * self._done / total), total=100, detail=detail))

    def _fail(self, failure: Failure) -> None:
        self._run.append(failure)
        self.failures.append(failure)
