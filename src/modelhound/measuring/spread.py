"""All models at once on the machines of a Ray cluster: the same race, decided here, run there.

In:  a Job
Out: a record of every model, told as soon as it is there, the same as `together` would tell
Nothing here runs a network. Workers take the models apart and send what they are made of; they are placed so that shared
prefixes stay together (`plan.placing`); items are decoded once and looked at by all workers of a machine; after each rung the
scores that came back say who has lost, as on one machine. What a worker that dies has not told is run by another.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from modelhound.data import Dataset, InputForm
from modelhound.data.shared_items import carry_files, share_items
from modelhound.data.source import Reader
from modelhound.data.sources.folder import FileReader
from modelhound.features.supply import input_key
from modelhound.launch.connection import find_device, parse_address
from modelhound.launch.crew import Crew, join_crew
from modelhound.measuring.deciding import (
    decide_rungs,
    describe_plan,
    find_losers,
    order_by_rungs,
    possible_rungs,
    settle_in_fp32,
)
from modelhound.measuring.scoring import Job
from modelhound.measuring.share import Common, Final, RungRequest, Sight, Standing, Surveyed, Warned
from modelhound.meter import Lanes
from modelhound.models import ModelRef
from modelhound.plan import Chain, Costs, Deal, Parcel, Segment, make_plan, place_chains
from modelhound.records import Failure, Progress
from modelhound.settings import SearchSettings

__all__ = ["choose_spread_device", "measure_spread"]

_SURVEYS_PER_WORKER = 4
_TRIES = 3  # of a parcel whose worker dies, before its models are tried one by one; and then of each of them
_PATIENCE_SECONDS = 30.0  # before a copy of a late parcel: a worker's first seconds go into loading libraries


def choose_spread_device(settings: SearchSettings) -> str:
    """cuda where the cluster has GPUs, unless the settings say otherwise; what this machine has does not matter."""
    if settings.device != "auto":
        return settings.device.partition(":")[0]
    return find_device(parse_address(settings.on))


def measure_spread(job: Job) -> None:
    """Measure every model on the cluster that the settings name; those that fail or are dropped are told as such."""
    lanes = Lanes()
    with join_crew(parse_address(job.settings.on), device=job.device.partition(":")[0]) as crew:
        race = _SpreadRace(job, crew, lanes)
        race.survey()
        race.start()
        for rung in range(len(race.sizes)):
            if not race.running:
                break
            race.run(rung)
            race.judge(rung)
        race.close()
    job.tell(lanes.timeline())
    # this machine may have no GPU that could be asked what it has; those of the workers mostly have bf16
    if job.settings.precision == "auto" and job.device != "cpu":
        settle_in_fp32(job, race.finals, measure_spread)


class _SpreadRace:
    """Who is in the race, and how they stand."""

    def __init__(self, job: Job, crew: Crew, lanes: Lanes) -> None:
        self._job, self._crew, self._lanes = job, crew, lanes
        self._refs = {str(model): model for model in job.models}
        self._chains: dict[str, Chain] = {}
        self._forms: dict[str, InputForm] = {}
        self._costs: Costs | None = None
        self._surveyed: set[str] = set()
        self._known: set[str] = set()
        self._standings: dict[str, Standing] = {}
        self._warned: set[str] = set()
        self._sights: dict[str, NDArray[np.float32]] = {}
        self._tries: Counter[str] = Counter()
        """How often a model was given to a worker alone."""
        self._out: set[str] = set()
        """Measured, dropped or failed."""
        self.finals: dict[str, NDArray[np.float64]] = {}
        self.running: list[str] = []
        self.sizes: tuple[int, ...] = (len(job.dataset),)
        self._order: Sequence[int] = range(len(job.dataset))
        self._common: object = None

    def survey(self) -> None:
        """Have all models taken apart, evenly by whoever is free."""
        self._until_told(lambda: [model for model in self._refs if model not in self._surveyed], self._survey)

    def _survey(self, names: Sequence[str]) -> None:
        workers = self._crew.workers
        number = max(1, min(len(names), _SURVEYS_PER_WORKER * len(workers)))
        parcels = [Parcel(models=tuple(names[place::number]), seconds=1.0) for place in range(number)]
        shares = self._by_worker([tuple(parcels[place :: len(workers)]) for place in range(len(workers))])
        begun: Counter[str] = Counter()
        bare = dataclasses.replace(self._job.dataset, reader=_without_files(self._job.dataset))
        with self._lanes.span("cluster", "survey"):
            self._crew.run(
                Deal(shares, [1.0] * len(shares), _PATIENCE_SECONDS, is_told=self._surveyed.__contains__),
                "modelhound.measuring.share:survey_share",
                self._crew.share(self._make_common(bare)),
                lambda parcel: self._try(parcel, begun, self._surveyed.__contains__),
                self._receive,
            )

    def start(self) -> None:
        """All that can take part are known now, and so is what they share: the same rungs as on one machine."""
        job = self._job
        self.running = [model for model in self._refs if model in self._chains or model in self._known]
        self.sizes = possible_rungs(job, len(self._refs) - len(self._known))
        self._order = order_by_rungs(job.dataset, self.sizes, job.settings.seed)
        if len(self.sizes) > 1 and self._chains:
            self.sizes = self._worthwhile()
        with self._lanes.span("cluster", "decode items"):
            if job.device == "cpu":
                shared = share_items(job.dataset, list(self._forms.values()), watch=job.watch)
            else:
                shared = carry_files(job.dataset)  # decoded on each device, as on one machine
            self._common = self._crew.share(self._make_common(shared))

    def run(self, rung: int) -> None:
        """One rung of all models that are still in the race."""
        self._until_told(
            lambda: [model for model in self.running if model not in self._standings],
            lambda models: self._run(rung, models),
        )

    def _until_told(self, waiting: Callable[[], list[str]], work: Callable[[list[str]], None]) -> None:
        """Work until nobody waits; models that nobody tells anything of are given up after some rounds."""
        in_vain = 0
        while models := waiting():
            work(models)
            in_vain = in_vain + 1 if len(waiting()) == len(models) else 0
            for model in models if in_vain >= _TRIES else ():
                self._receive(-1, Failure(model=model, phase="forward", error="no worker told what became of it"))

    def _run(self, rung: int, models: Sequence[str]) -> None:
        start = 0 if rung == 0 else self.sizes[rung - 1]
        items = range(start, self.sizes[rung])
        chains = [self._chains.get(model) or _remembered(model) for model in models]
        costs = self._costs or _ROUGH
        if self._job.device == "cpu":  # items were decoded once for all; a device decodes those of its own models
            costs = dataclasses.replace(costs, decode_seconds_per_item=0.0, form_seconds_per_item={})
        workers = self._crew.workers
        placement = place_chains(chains, num_items=len(items), costs=costs, speeds=[1.0] * len(workers))
        there = [self._chains[model] for model in models if model in self._chains]
        if there:
            self._job.tell(describe_plan(make_plan(there, num_items=len(items), costs=costs, first_item=items.start)))
        shares = self._by_worker(placement.shares)
        begun: Counter[str] = Counter()

        def is_told(model: str) -> bool:
            return model in self._standings or model in self._out

        def request(parcel: Parcel) -> RungRequest | None:
            models = self._try(parcel, begun, is_told)
            if models is None:
                return None
            return RungRequest(models=models, sizes=self.sizes, order=self._order, rung=rung)

        with self._lanes.span("cluster", "run", f"{len(models)} models, {len(items)} items"):
            self._crew.run(
                Deal(shares, [1.0] * len(shares), _PATIENCE_SECONDS, is_told=is_told),
                "modelhound.measuring.share:run_share",
                self._common,
                request,
                self._receive,
            )

    def judge(self, rung: int) -> None:
        """After a rung: who has lost?"""
        scored = {model: self._standings.pop(model) for model in self.running if model in self._standings}
        if rung == len(self.sizes) - 1 or not scored:
            return
        losers = find_losers(
            self._job,
            {model: each.evidence for model, each in scored.items()},
            num_items=self.sizes[rung],
            describe=lambda model: (scored[model].num_parameters, scored[model].seconds),
        )
        for loser in losers:
            self._job.tell(loser)
            self._leave(loser.model)

    def close(self) -> None:
        """Say what a person should know, and show the best."""
        if self._crew.num_lost:
            self._job.warn(
                f"{self._crew.num_lost} workers of the cluster died; what they had not finished was run by others"
            )
        for model, features in self._sights.items():
            if model == min(self.finals, key=self._place):
                self._job.show(model, features)

    def _place(self, model: str) -> tuple[float, str]:
        """The smallest is the best, as the ranking will see it."""
        return -float(self.finals[model].mean()), model

    def _receive(self, worker: int, sent: object) -> None:
        """Whatever a worker sends, perhaps for the second time."""
        match sent:
            case Surveyed(model=model) if model not in self._surveyed:
                self._take_survey(sent)
            case Standing(model=model) if model in self.running:
                self._standings.setdefault(model, sent)
            case Final(record=record) if record.model not in self._out:
                self.finals[record.model] = sent.item_scores
                self._job.tell(record)
                self._leave(record.model)
            case Failure(model=model) if model not in self._out:
                self._job.tell(sent)
                self._surveyed.add(model)
                self._leave(model)
            case Sight(model=model, features=features) if model in self.finals:
                if all(self._place(model) <= self._place(other) for other in self._sights):
                    self._sights = {model: features}  # one alone: there may be thousands of parcels
            case Warned(warning=warning) if warning not in self._warned:
                self._warned.add(warning)
                self._job.warn(warning)

    def _take_survey(self, surveyed: Surveyed) -> None:
        self._surveyed.add(surveyed.model)
        if surveyed.chain is None:
            self._known.add(surveyed.model)
        else:
            self._chains[surveyed.model] = surveyed.chain
        if surveyed.form is not None:
            self._forms.setdefault(input_key(surveyed.form), surveyed.form)
        if surveyed.costs is not None:
            known = self._costs or surveyed.costs
            self._costs = dataclasses.replace(
                known,
                batch_items=max(surveyed.costs.batch_items, known.batch_items),
                form_seconds_per_item={**surveyed.costs.form_seconds_per_item, **known.form_seconds_per_item},
            )
        self._job.watch(Progress(task="reading models", done=len(self._surveyed), total=len(self._refs)))

    def _worthwhile(self) -> tuple[int, ...]:
        assert self._costs is not None
        chains = list(self._chains.values())
        return decide_rungs(self._job, make_plan(chains, num_items=len(self._job.dataset), costs=self._costs))

    def _leave(self, model: str) -> None:
        if model in self.running:
            self.running.remove(model)
        self._out.add(model)
        self._job.watch(Progress(task="models", done=len(self._out), total=len(self._refs)))

    def _try(self, parcel: Parcel, begun: Counter[str], is_told: Callable[[str], bool]) -> dict[ModelRef, str] | None:
        """The models of a parcel that are still to be done. One of them may kill every worker that touches it: of models
        that were begun together too often one is tried alone, and what is left of the parcel is placed anew."""
        todo = [model for model in parcel.models if not is_told(model)]
        begun.update(todo)
        if max((begun[model] for model in todo), default=0) > _TRIES:
            while todo and self._tries[todo[0]] >= _TRIES:
                reason = f"every worker that ran it died, {_TRIES} of them alone with it"
                self._receive(-1, Failure(model=todo.pop(0), phase="forward", error=reason))
            todo = todo[:1]
            self._tries.update(todo)
        return {self._refs[model]: self._job.models[self._refs[model]] for model in todo} or None

    def _by_worker(self, shares: Sequence[tuple[Parcel, ...]]) -> list[tuple[Parcel, ...]]:
        """Shares in the places of their workers' numbers, which may have gaps where some have died."""
        workers = self._crew.workers
        placed: list[tuple[Parcel, ...]] = [()] * (max(workers) + 1)
        for worker, share in zip(workers, shares, strict=True):
            placed[worker] = share
        return placed

    def _make_common(self, dataset: Dataset) -> Common:
        job = self._job
        return Common(
            dataset=dataset,
            settings=job.settings,
            scorers=job.scorers,
            device="cpu" if job.device == "cpu" else "cuda:0",  # a worker sees the one that is its own
        )


_ROUGH = Costs(
    flops_per_second=1.0,
    weight_bytes_per_second=1.0,
    spill_bytes_per_second=0.0,
    decode_seconds_per_item=0.0,
    score_seconds=1.0,
    launch_seconds=0.0,
    batch_items=1,
)
"""Where no model is run, since all are remembered."""


def _remembered(model: str) -> Chain:
    """A model whose features need not be made: it shares nothing and costs next to nothing."""
    nothing = Segment(
        fingerprint=model, flops_per_item=0.0, output_bytes_per_item=0, weight_bytes=0, peak_bytes_per_item=0
    )
    return Chain(model=model, input="", input_bytes_per_item=0, segments=(nothing,))


def _without_files(dataset: Dataset) -> Reader:
    """A reader that holds no files: none is read while models are taken apart."""
    return dataset.reader.holding(0) if isinstance(dataset.reader, FileReader) else dataset.reader
