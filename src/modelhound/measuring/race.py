"""A race of models: who is in it, with what features so far, who has lost.

In:  a Job; features of models, a rung of items at a time
Out: a record of every model, told as soon as it is there: measured, dropped or failed
Nothing here makes features (see `features`), asks scorers (see `judging`) or says when a model has lost (`analysis.racing`).
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from modelhound.analysis.racing import Evidence
from modelhound.errors import RequestError, StoreError, explain_error, is_out_of_memory
from modelhound.features.engine import Rows
from modelhound.features.many import Session
from modelhound.features.plain import feature_set_of
from modelhound.features.workshop import Specimen
from modelhound.measuring.deciding import decide_rungs, find_losers, order_by_rungs, possible_rungs
from modelhound.measuring.judging import Judge, Judgement, Opened
from modelhound.measuring.scoring import Job, Seen, make_record, tested_only
from modelhound.measuring.verdicts import Verdicts
from modelhound.measuring.weighing import Scales
from modelhound.meter import Meter
from modelhound.records import Failure, ModelMeasured, PhaseSamples, Progress
from modelhound.scores import FeatureSet, score
from modelhound.settings import decisive_scorer

__all__ = ["Race"]

Given = TypeVar("Given")
Found = TypeVar("Found")

_WARM_UP_ITEMS, _WARM_UP_FEATURES = 2000, 256
_SHARE_OF_WAITING = 0.05  # of a device's memory: for models that wait until so many are there that all learn at once


class Race:
    """Who is in the race, with what features so far."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._decisive = decisive_scorer(job.scorers)
        self._scales = Scales(job)
        self._refs = {str(model): model for model in job.models}
        self._session: Session | None = None
        self._alone = threading.Lock()
        self._trying_again = threading.Lock()
        self._seconds: dict[str, dict[str, float]] = {}
        self._features: dict[str, list[torch.Tensor]] = {}
        self._standings: dict[str, Evidence] = {}
        """Of every model in the present rung."""
        self._truncated: dict[str, int | None] = {}
        """How many texts of each model were cut; None where nobody knows, since some of its features are remembered."""
        self._notes: dict[str, tuple[str, ...]] = {}
        self.finals: dict[str, NDArray[np.float64]] = {}
        """What the decisive scorer says of each item, of every model that came to the end."""
        self._leader: tuple[float, str] | None = None
        """Of those the best, as the ranking will see it: the negative of its score, and its name."""
        self._leading = threading.Lock()
        self._unread: dict[str, int] = {}
        """Models that were told without reading their features, and which of their layers is best."""
        self._finished = 0
        self.running: list[str] = []
        self._sizes: tuple[int, ...] = (len(job.dataset),)
        self.order: Sequence[int] = range(len(job.dataset))
        self._targets = torch.from_numpy(job.dataset.targets)
        self._verdicts = Verdicts(
            job.dataset, job.scorers, seed=job.settings.seed, device=job.device, remember=not job.settings.fresh
        )
        self._judge = Judge(job, self._verdicts)

    def close(self) -> None:
        self._verdicts.close()

    def try_scorers(self) -> None:
        """Score some noise."""
        job = self._job
        targets = self._targets[:_WARM_UP_ITEMS].to(job.device)
        noise = torch.randn(len(targets), _WARM_UP_FEATURES, device=job.device)
        score(feature_set_of(job.dataset, noise, targets), [name for name in job.scorers if name != "leep"], seed=0)

    def prepare(self, session: Session) -> None:
        """As soon as it is known what models want: say in which order items are taken, and begin to decode them."""
        self._sizes = possible_rungs(self._job, len(self._refs) - len(session.known))
        self.order = order_by_rungs(self._job.dataset, self._sizes, self._job.settings.seed)
        session.expect_all(self.order)

    def start(self, session: Session) -> None:
        """All models that can take part are known now, and so is what they share."""
        self._enter(session)
        if self._job.device != "cpu":  # which learns of many models as quickly as of one
            self._judge.make_room(session.set_aside(_SHARE_OF_WAITING))
        if len(self._sizes) > 1 and session.specimens:
            # some of those that the order of items was made for, now that it is known what they would save
            self._sizes = decide_rungs(
                self._job, session.planner.plan(tuple(session.specimens), range(len(self._job.dataset)))
            )
        if len(self._sizes) == 1:  # or others race against them, rung by rung
            for model in self.running.copy():
                self._tell_remembered(model)

    def _enter(self, session: Session) -> None:
        """Those that could be read are in the race."""
        self._session = session
        self._seconds = {model: dict(seconds) for model, seconds in session.seconds.items()}
        self.running = [model for model in self._refs if model in session.specimens or model in session.known]

    def show_best(self) -> None:
        """The best model's features, where it was told without them."""
        best = self._find_best()
        if best in self._unread:
            assert self._session is not None
            rows = self._session.recall(best)
            if rows is not None:
                self._job.show(best, (rows if rows.ndim == 2 else rows[:, self._unread[best]]).cpu().numpy())

    def rungs(self) -> "list[range]":
        """The item numbers of each rung."""
        starts = (0, *self._sizes[:-1])
        return [range(start, stop) for start, stop in zip(starts, self._sizes, strict=True)]

    def lose(self, model: str, phase: str, error: Exception) -> None:
        """May be called from several threads, as may `take`."""
        if isinstance(error, RequestError | StoreError):
            raise error  # not this model's fault: data that changed or cannot be read, a disk that is full
        self._job.tell(Failure(model=model, phase=phase, error=explain_error(error)))
        with self._alone:
            self._leave(model)

    def take(self, model: str, rows: Rows) -> None:
        """Features of one rung; those of the last are judged at once, or as soon as enough models wait for that."""
        try:
            opened = self._take(model, rows)
        except Exception as error:  # features that some scorer cannot take, or memory that does not suffice for it
            self.lose(model, "score", error)
            return
        if opened is not None:
            self._end(self._judge.gather(opened))

    def settle(self) -> None:
        """Judge those that wait for others: nobody comes any more."""
        self._end(self._judge.rest())

    def _take(self, model: str, rows: Rows) -> Opened | None:
        last = sum(map(len, self._features.get(model, []))) + len(rows.features) == len(self._job.dataset)
        # what waits for the next rung waits on the host
        self._features.setdefault(model, []).append(rows.features if last else rows.features.cpu())
        self._notes[model] = (*self._notes.get(model, ()), *rows.notes)
        cut = self._truncated.get(model, 0)
        self._truncated[model] = None if cut is None or rows.num_truncated is None else cut + rows.num_truncated
        own = self._seconds[model]
        for phase, seconds in rows.seconds().items():
            own[phase] = own.get(phase, 0.0) + seconds
        if last:
            return self._within_memory(self._open, model)
        self._within_memory(self._look_at, model)
        return None

    def _open(self, model: str) -> Opened:
        assert self._session is not None
        return self._judge.open(model, self._layers(model), self._session.name_of(model))

    def _end(self, some: Sequence[Opened]) -> None:
        """Judge these models at once and tell each; where that cannot be done, one by one."""
        records: list[ModelMeasured] = []
        try:
            if len(some) == 1:
                records = self._within_memory(self._record, some)
            elif some:
                records = self._record(some)
        except Exception as error:
            if len(some) == 1:
                self.lose(some[0].model, "score", error)
                return
        if not records:
            for each in some:
                self._end([each])
        for record in records:
            self._job.tell(record)
            with self._alone:
                self._leave(record.model)

    def _record(self, some: Sequence[Opened]) -> list[ModelMeasured]:
        records = []
        for judgement in self._judge.end(some):
            records.append(self._describe_judged(judgement))
            with self._alone:
                if self._find_best() == judgement.model:
                    self._job.show(judgement.model, judgement.features.cpu().numpy())
        return records

    def _within_memory(self, work: Callable[[Given], Found], given: Given) -> Found:
        """Where memory does not suffice beside all that goes on meanwhile, once more, one model at a time."""
        try:
            return work(given)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        with self._trying_again:  # out here the error no longer holds on to what filled the memory
            if self._job.device != "cpu":
                torch.cuda.empty_cache()
            return work(given)

    def judge(self, num_items: int) -> None:
        """After a rung: who has lost?"""
        scored = {model: self._standings.pop(model) for model in self.running if model in self._standings}
        if num_items == len(self._job.dataset) or not scored:
            return
        for loser in find_losers(self._job, scored, num_items=num_items, describe=self._describe):
            self._job.tell(loser)
            self._leave(loser.model)

    def _describe(self, model: str) -> tuple[int, float]:
        return self._num_parameters(model), sum(self._seconds[model].values())

    def _look_at(self, model: str) -> None:
        """Where a model stands after this rung."""
        meter = Meter(self._job.device, keep_peak=True)
        with meter.phase("score"):
            features = torch.cat(self._features[model]).to(self._job.device)
            self._standings[model] = self._scales.weigh(features, self._targets[self._places[: len(features)]])
        own = self._seconds[model]
        own["score"] = own.get("score", 0.0) + meter.wall_seconds

    def _tell_remembered(self, model: str) -> None:
        """A model of which everything is known: its features and what all scorers say of them."""
        assert self._session is not None
        meter = Meter(self._job.device, keep_peak=True)
        known = self._session.known.get(model)
        judged = None if known is None else self._verdicts.recall(known.kept_as)
        if known is None or judged is None:
            return
        self._unread[model] = judged.layer
        judgement = Judgement(
            model=model,
            judged=judged,
            num_layers=max(1, known.num_layers),
            features=torch.empty(0),
            phases=meter.samples,
            wall_seconds=meter.wall_seconds,
            peak_memory_bytes=meter.peak_memory_bytes,
        )
        self._job.tell(self._describe_judged(judgement))
        with self._alone:
            self._leave(model)

    def _layers(self, model: str) -> list[FeatureSet]:
        """Everything that was made of the items, layer by layer."""
        assert self._session is not None
        rows = torch.cat([part.to(self._job.device) for part in self._features[model]])
        self._features[model] = [rows]  # in one piece, should it be asked for again
        features = self._in_order(rows)
        specimen = self._session.specimens.get(model)
        opinions = _opinions(specimen, features) if specimen is not None and "leep" in self._job.scorers else None
        layers = [features] if features.ndim == 2 else [layer.contiguous() for layer in features.unbind(1)]
        targets = self._targets.to(rows.device)
        return [feature_set_of(self._job.dataset, layer, targets, opinions) for layer in layers]

    def _describe_judged(self, judgement: Judgement) -> ModelMeasured:
        """What is told of a model; its place in the race is noted."""
        job, session, model = self._job, self._session, judgement.model
        assert session is not None
        specimen = session.specimens.get(model)
        form = None if specimen is None else specimen.form
        num_truncated, max_tokens = self._verdicts.texts_cut(session.name_of(model), form, self._truncated.get(model))
        own = tuple(PhaseSamples(phase=phase, seconds=(spent,)) for phase, spent in self._seconds[model].items())
        record = make_record(
            Seen(
                model=self._refs[model],
                stamp=job.models[self._refs[model]],
                form=form,
                num_parameters=self._num_parameters(model),
                num_features=judgement.judged.num_features,
                num_layers=judgement.num_layers,
                num_truncated=num_truncated,
                max_tokens=max_tokens,
                notes=(*self._notes.get(model, ()), *_trouble(specimen)),
            ),
            job.dataset,
            judgement.judged.scores,
            judgement.judged.layer,
            phases=(*own, *judgement.phases),
            wall_seconds=sum(self._seconds[model].values()) + judgement.wall_seconds,
            peak_memory_bytes=judgement.peak_memory_bytes,
        )
        decisive = judgement.judged.scores.values[self._decisive].item_scores
        assert decisive is not None
        self.finals[model] = tested_only(decisive)
        self._take_lead(model)
        return record

    def _take_lead(self, model: str) -> None:
        """If it is better than all others: those are not looked at again, there may be thousands of them."""
        own = (-float(self.finals[model].mean()), model)
        with self._leading:
            self._leader = own if self._leader is None else min(self._leader, own)

    def _find_best(self) -> str | None:
        """Of those that came to the end so far."""
        return None if self._leader is None else self._leader[1]

    def _in_order(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows in the order of the data set."""
        if isinstance(self.order, range):
            return rows
        features = torch.empty_like(rows)
        features[self._places.to(rows.device)] = rows
        return features

    @functools.cached_property
    def _places(self) -> torch.Tensor:
        """The order of the items, which is settled when features come; to make a tensor of it takes a while."""
        return torch.as_tensor(self.order)

    def _num_parameters(self, model: str) -> int:
        assert self._session is not None
        known = self._session.known.get(model)
        return known.num_parameters if known else self._session.specimens[model].num_parameters

    def _leave(self, model: str) -> None:
        if model in self.running:
            self.running.remove(model)
        if self._session is not None:
            self._session.let_go(model)
        self._features.pop(model, None)
        self._finished += 1
        self._job.watch(Progress(task="models", done=self._finished, total=len(self._refs)))


def _trouble(specimen: Specimen | None) -> tuple[str, ...]:
    """A network that nowhere can be cut shares nothing with others; that is worth a word."""
    if specimen is None or len(specimen.blueprint.anatomy.parts) > 1 or specimen.blueprint.anatomy.trouble is None:
        return ()
    return (f"it was run whole, since it cannot be cut: {specimen.blueprint.anatomy.trouble}",)


def _opinions(specimen: Specimen, features: torch.Tensor) -> torch.Tensor | None:
    """What the network's own classifier makes of its features."""
    if specimen.classifier is None or features.ndim != 2:
        return None
    weight, bias = (None if each is None else each.to(features.device, torch.float32) for each in specimen.classifier)
    assert weight is not None
    return torch.nn.functional.linear(features, weight, bias).softmax(1)
