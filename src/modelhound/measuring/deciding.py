"""What is decided beside running models: their arithmetic, after how many items they may be dropped, in which order items come.

In:  a Job, a plan of what there is to run
Out: a session to run models in, numbers of items, positions, the plan as a record, who has lost, whom to measure once more
Nothing here runs a model. On one machine and on a cluster the same is decided.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from modelhound.analysis.racing import CLOSE, Evidence, close_race, judge_rung, rung_sizes, worthwhile_rungs
from modelhound.data import Dataset
from modelhound.data.choosing import choose_balanced, strata
from modelhound.features.many import Session
from modelhound.measuring.scoring import Job
from modelhound.meter import Lanes, choose_precision
from modelhound.plan import ExplainedNode, Plan, explain_plan, forecast_plan, halving_spares
from modelhound.records import ModelDropped, PlanMade, PlanNode
from modelhound.settings import DEFAULT_TOP

__all__ = [
    "choose_dtype",
    "decide_rungs",
    "describe_plan",
    "find_losers",
    "open_session",
    "order_by_rungs",
    "possible_rungs",
    "settle_in_fp32",
]

_NEARLY_ALL = 0.9  # of the items: what is left over may not fill one of the tenths that items are taken from evenly
# of one model after a rung: starting parts again, the decisive scorer twice
_JUDGE_SECONDS = {"cpu": 0.03, "cuda": 0.07}


def choose_dtype(job: Job) -> torch.dtype:
    """Of the networks' arithmetic, on the machine that runs them: its device is asked what it has."""
    names = {"fp32": torch.float32, "bf16": torch.bfloat16}
    return names[choose_precision(job.settings.precision, job.device)]


def open_session(job: Job, lanes: Lanes | None = None) -> Session:
    """Where the models of a job are run, as its settings say."""
    settings = job.settings
    return Session(
        job.dataset,
        settings,
        seed=settings.seed,
        device=job.device,
        dtype=choose_dtype(job),
        batch=settings.batch,
        threads=None if settings.workers is None else max(1, settings.workers),
        memory_bytes=settings.memory_bytes(),
        remember=not settings.fresh,
        lanes=lanes,
        watch=job.watch,
    )


def possible_rungs(job: Job, num_racing: int) -> tuple[int, ...]:
    """After how many items models could be dropped; the last is all of them."""
    dataset = job.dataset
    if job.settings.exhaustive or num_racing <= 2 * (job.settings.top or DEFAULT_TOP) or _is_nearly_constant(dataset):
        return (len(dataset),)
    return rung_sizes(len(dataset), len(np.unique(strata(dataset.targets, dataset.task))))


def _is_nearly_constant(dataset: Dataset) -> bool:
    """Of numbers that are nearly all the same, a rung or half of one may hold no other: then no scorer can say anything."""
    if dataset.task != "regression":
        return False
    _, counts = np.unique(dataset.targets, return_counts=True)
    return bool(counts.max() > _NEARLY_ALL * len(dataset))


def decide_rungs(job: Job, plan: Plan) -> tuple[int, ...]:
    """Those of the possible rungs that are worth their while; `plan` is of all items and of all models that are run."""
    sizes = possible_rungs(job, len(plan.chains))
    if len(sizes) == 1:
        return sizes
    return worthwhile_rungs(
        sizes,
        spared_seconds_per_item=halving_spares(plan) / plan.num_items,
        judge_seconds=len(plan.chains) * _JUDGE_SECONDS["cpu" if job.device == "cpu" else "cuda"],
    )


def order_by_rungs(dataset: Dataset, sizes: Sequence[int], seed: int) -> Sequence[int]:
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


def find_losers(
    job: Job,
    evidence: Mapping[str, Evidence],
    *,
    num_items: int,
    describe: Callable[[str], tuple[int, float]],
) -> list[ModelDropped]:
    """Who has lost after `num_items` items.

    `describe` gives the number of a model's parameters and the seconds it took.
    """
    top = job.settings.top or DEFAULT_TOP
    stamps = {str(model): stamp for model, stamp in job.models.items()}
    verdicts = judge_rung(evidence, top=top, risk=job.settings.risk, seed=job.settings.seed)
    losers = []
    for verdict in verdicts:
        if not verdict.stays:
            num_parameters, seconds = describe(verdict.model)
            losers.append(
                ModelDropped(
                    model=verdict.model,
                    stamp=stamps[verdict.model],
                    num_parameters=num_parameters,
                    num_items=num_items,
                    score=verdict.score,
                    chance=verdict.chance,
                    top=top,
                    seconds=seconds,
                )
            )
    return losers


def describe_plan(plan: Plan) -> PlanMade:
    """The plan as a record."""
    forecast = forecast_plan(plan)
    shared = forecast.flops_run / forecast.flops if forecast.flops else 1.0
    return PlanMade(
        num_items=plan.num_items,
        num_models=len(plan.chains),
        seconds=forecast.total_seconds,
        seconds_alone=forecast.total_seconds - forecast.forward_seconds + forecast.forward_seconds / shared,
        trees=tuple(_as_record(node) for node in explain_plan(plan)),
    )


def _as_record(node: ExplainedNode) -> PlanNode:
    return PlanNode(
        label=node.label,
        finishes=node.finishes,
        num_models=node.num_models,
        keep=node.keep,
        flops=node.flops,
        weight_bytes=node.weight_bytes,
        output_bytes=node.output_bytes,
        seconds=node.seconds,
        children=tuple(_as_record(child) for child in node.children),
    )


def settle_in_fp32(job: Job, finals: Mapping[str, NDArray[np.float64]], measure: Callable[[Job], None]) -> None:
    """Measure the best models once more, where rounding might have decided between them."""
    close = close_race(finals)
    if len(close) < 2:
        return
    job.warn(f"{', '.join(close)} were within {CLOSE:.1%} in half precision, so that they were measured again in fp32")
    settings = dataclasses.replace(
        job.settings, precision="fp32", exhaustive=True, risk=type(job.settings).risk, models=close
    )
    models = {model: stamp for model, stamp in job.models.items() if str(model) in close}
    measure(dataclasses.replace(job, models=models, settings=settings))
