"""All models at once: items decoded once, equal parts run once, and models dropped that have lost.

In:  a Job
Out: a record of every model, told as soon as it is there: measured, dropped or failed
Nothing here knows how sharing works (see `features`) or when a model has lost (see `analysis.racing`).

A race goes over rungs of items, the same for all models and of all classes alike. After each rung but the last, the decisive
scorer's leave-one-out scores on all items so far say who can still be among the best. Only those that reach the last rung are
judged by all scorers.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

import numpy as np
import torch

from modelhound.analysis.racing import judge_rung, rung_sizes
from modelhound.data import Dataset
from modelhound.data.choosing import choose_balanced, strata
from modelhound.errors import RequestError, StoreError
from modelhound.features.engine import Rows
from modelhound.features.many import Session
from modelhound.features.workshop import Specimen
from modelhound.measuring.scoring import Job, Seen, explain_error, make_record, score_best_layer
from modelhound.meter import Meter
from modelhound.records import Failure, ModelDropped, PhaseSamples, Progress
from modelhound.scores import FeatureSet, score
from modelhound.settings import DEFAULT_TOP, decisive_scorer

__all__ = ["measure_together"]


def measure_together(job: Job) -> None:
    """Measure every model; those that fail or are dropped are told as such and the others go on."""
    race = _Race(job)
    session = Session(
        job.dataset,
        job.settings,
        seed=job.settings.seed,
        device=job.device,
        dtype=_choose_dtype(job),
        batch=job.settings.batch,
        threads=None if job.settings.workers is None else max(1, job.settings.workers),
        memory_bytes=job.settings.memory_bytes(),
        watch=job.watch,
    )
    session.survey(tuple(job.models), failed=race.lose)
    race.start(session)
    with _Aside(job.device) as aside:
        for items in race.rungs():
            if not race.running:
                return
            session.run(
                tuple(race.running),
                items,
                race.order,
                done=lambda model, rows: aside.do(race.take, model, rows),
                failed=race.lose,
            )
            aside.wait()
            race.judge(items.stop)


def _choose_dtype(job: Job) -> torch.dtype:
    names = {"fp32": torch.float32, "bf16": torch.bfloat16}
    if job.settings.precision != "auto":
        return names[job.settings.precision]
    return torch.float32 if job.device == "cpu" else torch.bfloat16


class _Aside:
    """Scores while the device goes on with other models: in a thread and on a stream of its own; on a CPU, at once."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="score") if device != "cpu" else None
        self._waiting: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)

    def do(self, work: Callable[[str, Rows], None], model: str, rows: Rows) -> None:
        if self._thread is None:
            work(model, rows)
            return
        made = torch.cuda.Event()  # type: ignore[no-untyped-call]
        made.record(torch.cuda.current_stream(self._device))
        self._waiting.append(self._thread.submit(self._work, work, model, rows, made))

    def wait(self) -> None:
        """Until all of it is done; what went wrong is raised here."""
        for each in self._waiting:
            each.result()
        self._waiting.clear()

    def _work(self, work: Callable[[str, Rows], None], model: str, rows: Rows, made: torch.cuda.Event) -> None:
        with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
            made.wait()
            rows.features.record_stream(torch.cuda.current_stream(self._device))
            work(model, rows)
            torch.cuda.current_stream(self._device).synchronize()


class _Race:
    """Who is in the race, with what features so far."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._decisive = decisive_scorer(job.scorers)
        self._refs = {str(model): model for model in job.models}
        self._specimens: dict[str, Specimen] = {}
        self._seconds: dict[str, dict[str, float]] = {}
        self._features: dict[str, list[torch.Tensor]] = {}
        self._truncated: dict[str, int] = {}
        self._finished = 0
        self.running: list[str] = []
        self._sizes: tuple[int, ...] = (len(job.dataset),)
        self.order: Sequence[int] = range(len(job.dataset))
        self._targets = torch.from_numpy(job.dataset.targets)

    def start(self, session: Session) -> None:
        self._specimens = session.specimens
        self._seconds = {model: dict(seconds) for model, seconds in session.seconds.items()}
        self.running = [model for model in self._refs if model in session.specimens]
        settings = self._job.settings
        if not settings.exhaustive and len(self.running) > 2 * (settings.top or DEFAULT_TOP):
            groups = strata(self._job.dataset.targets, self._job.dataset.task)
            self._sizes = rung_sizes(len(self._job.dataset), len(np.unique(groups)))
        self.order = _order_by_rungs(self._job.dataset, self._sizes, settings.seed)

    def rungs(self) -> "list[range]":
        """The item numbers of each rung."""
        starts = (0, *self._sizes[:-1])
        return [range(start, stop) for start, stop in zip(starts, self._sizes, strict=True)]

    def lose(self, model: str, phase: str, error: Exception) -> None:
        if isinstance(error, RequestError | StoreError):
            raise error  # not this model's fault: data that changed or cannot be read, a disk that is full
        self._job.tell(Failure(model=model, phase=phase, error=explain_error(error)))
        self._leave(model)

    def take(self, model: str, rows: Rows) -> None:
        """Features of one rung; those of the last are judged at once."""
        self._features.setdefault(model, []).append(rows.features)
        self._truncated[model] = self._truncated.get(model, 0) + rows.num_truncated
        for phase, seconds in rows.seconds.items():
            own = self._seconds[model]
            own[phase] = own.get(phase, 0.0) + seconds
        if sum(map(len, self._features[model])) == len(self._job.dataset):
            self._finish(model)

    def judge(self, num_items: int) -> None:
        """After a rung: who has lost?"""
        if num_items == len(self._job.dataset):
            return
        top = self._job.settings.top or DEFAULT_TOP
        scored = {}
        for model in list(self.running):
            meter = Meter(self._job.device)
            try:
                with meter.phase("score"):
                    scored[model] = self._item_scores(model)
            except Exception as error:  # features that no scorer can take
                self.lose(model, meter.current_phase, error)
        if not scored:
            return
        verdicts = judge_rung(
            tuple(scored),
            np.stack(tuple(scored.values())),
            top=top,
            risk=self._job.settings.risk,
            seed=self._job.settings.seed,
        )
        for verdict in verdicts:
            if not verdict.stays:
                self._job.tell(
                    ModelDropped(
                        model=verdict.model,
                        stamp=self._job.models[self._refs[verdict.model]],
                        num_parameters=self._specimens[verdict.model].num_parameters,
                        num_items=num_items,
                        score=verdict.score,
                        chance=verdict.chance,
                        top=top,
                        seconds=sum(self._seconds[verdict.model].values()),
                    )
                )
                self._leave(verdict.model)

    def _item_scores(self, model: str) -> np.ndarray:
        """Of the decisive scorer, for all items so far; an item that it did not test counts nothing for anybody."""
        features = torch.cat(self._features[model])
        targets = self._targets[torch.as_tensor(self.order[: len(features)])].to(features.device)
        layers = [features] if features.ndim == 2 else list(features.unbind(1))
        found = [
            score(self._feature_set(layer.contiguous(), targets), [self._decisive], seed=self._job.settings.seed)
            for layer in layers
        ]
        best = max((each.values[self._decisive] for each in found), key=lambda each: each.value)
        assert best.item_scores is not None
        return np.nan_to_num(best.item_scores.astype(np.float64))

    def _finish(self, model: str) -> None:
        """All scorers, on all items in the order of the data set."""
        job = self._job
        meter = Meter(job.device)
        rows = torch.cat(self._features.pop(model))
        features = torch.empty_like(rows)
        features[torch.as_tensor(self.order).to(rows.device)] = rows
        specimen = self._specimens[model]
        opinions = _opinions(specimen, features) if "leep" in job.scorers else None
        layers = [features] if features.ndim == 2 else [layer.contiguous() for layer in features.unbind(1)]
        seen = Seen(
            model=self._refs[model],
            stamp=job.models[self._refs[model]],
            form=specimen.form,
            num_parameters=specimen.num_parameters,
            layers=[self._feature_set(layer, self._targets.to(rows.device), opinions) for layer in layers],
            num_truncated=self._truncated[model],
        )
        try:
            scores, layer = score_best_layer(
                seen.layers, job.scorers, seed=job.settings.seed, timed=lambda name: meter.phase("score")
            )
        except RequestError:
            raise
        except Exception as error:  # features that some scorer cannot take
            self.lose(model, meter.current_phase, error)
            return
        own = tuple(PhaseSamples(phase=phase, seconds=(spent,)) for phase, spent in self._seconds[model].items())
        record = make_record(
            seen,
            job.dataset,
            scores,
            layer,
            phases=(*own, *meter.samples),
            wall_seconds=sum(self._seconds[model].values()) + meter.wall_seconds,
            peak_memory_bytes=meter.peak_memory_bytes,
        )
        job.tell(record)
        self._leave(model)

    def _feature_set(
        self, features: torch.Tensor, targets: torch.Tensor, opinions: torch.Tensor | None = None
    ) -> FeatureSet:
        dataset = self._job.dataset
        return FeatureSet(
            features=features,
            targets=targets,
            task=dataset.task,
            num_classes=len(dataset.class_names),
            source_probabilities=opinions,
        )

    def _leave(self, model: str) -> None:
        if model in self.running:
            self.running.remove(model)
        self._features.pop(model, None)
        self._finished += 1
        self._job.watch(Progress(task="models", done=self._finished, total=len(self._refs)))


def _order_by_rungs(dataset: Dataset, sizes: Sequence[int], seed: int) -> Sequence[int]:
    """Positions such that the first `size` of them are evenly of all classes, for every size; within a rung in order."""
    if len(sizes) == 1:
        return range(len(dataset))
    groups = strata(dataset.targets, dataset.task)
    order: list[int] = []
    taken: set[int] = set()
    for size in sizes:
        chosen = choose_balanced(groups, limit=size, seed=seed).tolist()
        order += [position for position in chosen if position not in taken]
        taken.update(chosen)
    return order


def _opinions(specimen: Specimen, features: torch.Tensor) -> torch.Tensor | None:
    """What the network's own classifier makes of its features."""
    if specimen.classifier is None or features.ndim != 2:
        return None
    weight, bias = (None if each is None else each.to(features.device, torch.float32) for each in specimen.classifier)
    assert weight is not None
    return torch.nn.functional.linear(features, weight, bias).softmax(1)
