"""What a search would do, what it would share and how long it would take.

In:  a Job
Out: a SearchForeseen; no model has run over the data set
Nothing here is a guess where a moment of measuring helps: weights are read and taken apart as for a search, every part of every
architecture is run on one batch or a few, some items are decoded and some made-up features are scored.
"""

import msgspec
import numpy as np
import torch

from modelhound.analysis.input_wording import input_texts
from modelhound.data import Dataset
from modelhound.data.choosing import choose_balanced, strata
from modelhound.errors import RequestError, StoreError, explain_error
from modelhound.features.many import Session
from modelhound.features.plain import feature_set_of
from modelhound.measuring.aside import cores_at_once
from modelhound.measuring.deciding import decide_rungs, describe_plan, open_session
from modelhound.measuring.scoring import Job
from modelhound.meter import Meter, seconds_now
from modelhound.plan import forecast_plan
from modelhound.records import Failure, PlanMade, SearchForeseen
from modelhound.scores import MOST_TOGETHER, FeatureSet, begin, finish

__all__ = ["foresee"]

_MOST_VALUES = {"cpu": 4_000_000, "cuda": 32_000_000}  # of the features that are scored: a moment's work
_FEWEST_ITEMS = 200
_NUM_DIRECTIONS = (
    64  # in which they mostly vary: scorers that learn take longer on features like those of real networks
)


def foresee(job: Job, *, open_seconds: float = 0.0) -> SearchForeseen:
    """Prepare everything, run nothing; `open_seconds` is what opening the data set took."""
    failures: list[Failure] = []

    def lose(model: str, phase: str, error: Exception) -> None:
        if isinstance(error, RequestError | StoreError):
            raise error  # not this model's fault
        failures.append(Failure(model=model, phase=phase, error=explain_error(error)))

    with open_session(job) as session:
        began = seconds_now()
        session.survey(job.models, failed=lose, shortcut="leep" not in job.scorers)
        survey_seconds = seconds_now() - began
        score_seconds = _time_scores(job, _width(session))
        known_seconds = len(session.known) * score_seconds
        session.calibrate(failed=lose)
        if not session.specimens:
            return _nothing_to_run(job, session, failures, open_seconds, known_seconds)
        models = tuple(session.specimens)
        plan = session.planner.plan(models, range(len(job.dataset)), score_seconds=score_seconds)
        forecast = forecast_plan(plan)
        rungs = decide_rungs(job, plan)
        fewest = session.planner.plan(models, range(rungs[0]), score_seconds=0.0)
        least = forecast_plan(fewest).total_seconds if len(rungs) > 1 else forecast.total_seconds
        return SearchForeseen(
            num_models=len(models),
            num_remembered=len(session.known),
            num_items=len(job.dataset),
            rungs=rungs,
            phases={
                "open data": open_seconds,
                "read weights and build": survey_seconds,
                "wait for data": forecast.decode_seconds,
                "forward": forecast.forward_seconds,
                "score": forecast.score_seconds + known_seconds,
                "spill": forecast.spill_seconds,
            },
            seconds=open_seconds + survey_seconds + forecast.total_seconds + known_seconds,
            least_seconds=open_seconds + survey_seconds + least + known_seconds,
            peak_memory_bytes=forecast.peak_bytes + session.planner.beside_bytes(models),
            flops=forecast.flops,
            flops_run=forecast.flops_run,
            weight_bytes=forecast.weight_bytes,
            weight_bytes_read=forecast.weight_bytes_read,
            plan=_name_inputs(describe_plan(plan)),
            failures=tuple(failures),
        )


def _nothing_to_run(
    job: Job, session: Session, failures: list[Failure], open_seconds: float, score_seconds: float
) -> SearchForeseen:
    seconds = open_seconds + score_seconds
    return SearchForeseen(
        num_models=0,
        num_remembered=len(session.known),
        num_items=len(job.dataset),
        rungs=(len(job.dataset),),
        phases={"open data": open_seconds, "score": score_seconds},
        seconds=seconds,
        least_seconds=seconds,
        peak_memory_bytes=0,
        flops=0.0,
        flops_run=0.0,
        weight_bytes=0,
        weight_bytes_read=0,
        plan=PlanMade(num_items=len(job.dataset), num_models=0, seconds=0.0, seconds_alone=0.0, trees=()),
        failures=tuple(failures),
    )


def _width(session: Session) -> int:
    """About how many features an item has."""
    widths = [each.blueprint.anatomy.parts[-1].output_bytes_per_item // 4 for each in session.specimens.values()]
    return max(8, round(sum(widths) / len(widths))) if widths else 512


def _time_scores(job: Job, width: int) -> float:
    """Seconds by which a search grows for scoring one more model of this width, from made-up features and the real targets."""
    dataset = job.dataset
    most = _MOST_VALUES[job.device.partition(":")[0]] // width
    # more than there are classes, or each might come once, of which no scorer can say anything
    fewest = max(_FEWEST_ITEMS, len(np.unique(strata(dataset.targets, dataset.task))) + 1)
    num_items = min(len(dataset), max(most, fewest))
    scorers = [name for name in job.scorers if name != "leep"]
    on_cpu = job.device == "cpu"
    together = 1 if on_cpu else min(len(job.models), MOST_TOGETHER)  # that learn at once
    at_once = min(len(job.models), cores_at_once(job, width)) if on_cpu else 1
    seconds = 0.0
    for _ in range(2):  # what is done for the first time takes longer
        features = _feature_set(dataset, _make_up(num_items, width).to(job.device), num_items)
        meter = Meter(job.device, keep_peak=True)
        with meter.phase("one by one"):
            begun = begin(features, scorers, seed=job.settings.seed)
        with meter.phase("together"):
            finish([begun] * together)
        alone, shared = (each.total for each in meter.samples)
        seconds = (alone + shared / together) / at_once
    return seconds * len(dataset) / num_items


def _make_up(num_items: int, width: int) -> torch.Tensor:
    """Features that vary in some directions more than in others and are never negative, as a network's last ones do."""
    generator = torch.Generator().manual_seed(0)
    strengths = torch.arange(1, _NUM_DIRECTIONS + 1).rsqrt()
    items = torch.randn(num_items, _NUM_DIRECTIONS, generator=generator) * strengths
    return torch.relu(items @ torch.randn(_NUM_DIRECTIONS, width, generator=generator))


def _feature_set(dataset: Dataset, features: torch.Tensor, num_items: int) -> FeatureSet:
    # of all classes: items often come class by class
    places = choose_balanced(strata(dataset.targets, dataset.task), limit=num_items, seed=0)
    targets = torch.from_numpy(dataset.targets[places]).to(features.device)
    return feature_set_of(dataset, features, targets)


def _name_inputs(plan: PlanMade) -> PlanMade:
    """The tops of the trees are named as a person would name them."""
    said = input_texts(tree.label for tree in plan.trees)
    trees = tuple(msgspec.structs.replace(tree, label=said[tree.label]) for tree in plan.trees)
    return msgspec.structs.replace(plan, trees=trees)
