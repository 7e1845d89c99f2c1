"""What a search would do, what it would share and how long it would take.

In:  a Job
Out: a SearchForeseen; no model has run over the data set
Nothing here is a guess where a moment of measuring helps: weights are read and taken apart as for a search, every part of every
architecture is run on one batch, some items are decoded and some noise is scored.
"""

import msgspec
import torch

from modelhound.data import Dataset, InputForm, Tokenising
from modelhound.errors import RequestError, explain_error
from modelhound.features.engine import forms_of
from modelhound.features.many import Session
from modelhound.measuring.deciding import decide_rungs, describe_plan, open_session
from modelhound.measuring.scoring import Job
from modelhound.meter import Meter, seconds_now
from modelhound.plan import forecast_plan
from modelhound.records import Failure, PlanMade, SearchForeseen
from modelhound.scores import FeatureSet, score

__all__ = ["foresee"]

_MOST_VALUES = 4_000_000  # of the noise that is scored: a moment's work


def foresee(job: Job) -> SearchForeseen:
    """Prepare everything, run nothing."""
    failures: list[Failure] = []

    def lose(model: str, phase: str, error: Exception) -> None:
        if isinstance(error, RequestError):
            raise error
        failures.append(Failure(model=model, phase=phase, error=explain_error(error)))

    with open_session(job) as session:
        began = seconds_now()
        session.survey(job.models, failed=lose, shortcut="leep" not in job.scorers)
        survey_seconds = seconds_now() - began
        score_seconds = _time_scores(job, _width(session))
        known_seconds = len(session.known) * score_seconds
        if not session.specimens:
            return _nothing_to_run(job, session, failures, known_seconds)
        session.calibrate()
        models = tuple(session.specimens)
        plan = session.plan(models, range(len(job.dataset)), score_seconds=score_seconds)
        forecast = forecast_plan(plan)
        rungs = decide_rungs(job, plan)
        fewest = session.plan(models, range(rungs[0]), score_seconds=0.0)
        least = forecast_plan(fewest).total_seconds if len(rungs) > 1 else forecast.total_seconds
        return SearchForeseen(
            num_models=len(models),
            num_remembered=len(session.known),
            num_items=len(job.dataset),
            rungs=rungs,
            phases={
                "read weights and build": survey_seconds,
                "wait for data": forecast.decode_seconds,
                "forward": forecast.forward_seconds,
                "score": forecast.score_seconds + known_seconds,
                "spill": forecast.spill_seconds,
            },
            seconds=survey_seconds + forecast.total_seconds + known_seconds,
            least_seconds=survey_seconds + least + known_seconds,
            peak_bytes=forecast.peak_bytes + session.beside_bytes(models),
            flops=forecast.flops,
            flops_run=forecast.flops_run,
            weight_bytes=forecast.weight_bytes,
            weight_bytes_read=forecast.weight_bytes_read,
            plan=_name_inputs(describe_plan(plan), session),
            failures=tuple(failures),
        )


def _nothing_to_run(job: Job, session: Session, failures: list[Failure], seconds: float) -> SearchForeseen:
    return SearchForeseen(
        num_models=0,
        num_remembered=len(session.known),
        num_items=len(job.dataset),
        rungs=(len(job.dataset),),
        phases={"score": seconds},
        seconds=seconds,
        least_seconds=seconds,
        peak_bytes=0,
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
    """Seconds to score one model of this width, from noise and the real targets."""
    dataset = job.dataset
    num_items = max(min(len(dataset), _MOST_VALUES // width), min(len(dataset), 200))
    scorers = [name for name in job.scorers if name != "leep"]
    seconds = []
    for _ in range(2):  # what is done for the first time takes longer
        noise = torch.randn(num_items, width, generator=torch.Generator().manual_seed(0)).to(job.device)
        features = _feature_set(dataset, noise, num_items)
        meter = Meter(job.device, keep_peak=True)
        with meter.phase("score"):
            score(features, scorers, seed=job.settings.seed)
        seconds.append(meter.samples[0].total)
    return seconds[-1] * len(dataset) / num_items


def _feature_set(dataset: Dataset, noise: torch.Tensor, num_items: int) -> FeatureSet:
    step = len(dataset) // num_items
    targets = torch.from_numpy(dataset.targets[: num_items * step : step].copy()).to(noise.device)
    return FeatureSet(
        features=noise[: len(targets)], targets=targets, task=dataset.task, num_classes=len(dataset.class_names)
    )


def _name_inputs(plan: PlanMade, session: Session) -> PlanMade:
    """The tops of the trees are named as a person would name them."""
    names = {f"data {key}": _describe(form) for key, form in forms_of(list(session.specimens.values())).items()}
    trees = tuple(msgspec.structs.replace(tree, label=names.get(tree.label, tree.label)) for tree in plan.trees)
    return msgspec.structs.replace(plan, trees=trees)


def _describe(form: InputForm) -> str:
    if isinstance(form, Tokenising):
        return f"texts of up to {form.max_tokens} tokens"
    return "images of {} x {}".format(*form.input_size)
