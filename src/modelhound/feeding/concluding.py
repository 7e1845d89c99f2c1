"""From what was asked to the pairs to look at, and from a finished study to its answer.

In:  settings and the machine; a Studied
Out: the pairs that differ from each other, and why others are left out; a KindAnswer
Nothing here runs a model, except where other options are to be tried at the recommended pair. The arithmetic is that of
`analysis`.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from modelhound.analysis.loader_advice import (
    ModelParts,
    Surroundings,
    advise,
    find_best_pairs,
    state_verdict,
    weigh_preparing,
)
from modelhound.analysis.loader_model import suit_computing
from modelhound.analysis.pairs import Pair, PairTimes, count_top, order_pairs, rate_pairs
from modelhound.analysis.wording import plural
from modelhound.feeding.ledger import Study
from modelhound.feeding.studying import Studied, stretch
from modelhound.feeding.sweeping import compose_run
from modelhound.feeding.tuning import tune
from modelhound.records import ItemsPrepared, KindAnswer, LengthPoint, PairSeconds
from modelhound.settings import LoaderSearchSettings, LoaderSettings

__all__ = ["choose_pairs", "conclude", "headline", "weigh_kinds"]

_CUDA_BATCHES, _CPU_BATCHES = (32, 64, 128, 256, 512, 1024), (8, 16, 32, 64, 128)
_LENGTHS = (100, 300, 1000, 3000, 10_000, 30_000, 100_000, 300_000, 1_000_000)


def choose_pairs(
    settings: LoaderSearchSettings, *, device: str, num_cores: int, num_items: int
) -> tuple[tuple[Pair, ...], list[str]]:
    """All pairs asked for that differ in a pass over so many items, and notes on the others."""
    batches, workers = settings.batch, settings.workers
    if batches == ("auto",):
        usual = _CPU_BATCHES if device == "cpu" else _CUDA_BATCHES
        batches = tuple(batch for batch in usual if batch <= num_items) or usual[:1]
    if workers == ("auto",):
        doubling = [1 << power for power in range(num_cores.bit_length())]
        workers = tuple(sorted({0, *(each for each in doubling if each <= num_cores), num_cores}))
    notes = []
    too_large = [int(batch) for batch in batches if int(batch) > num_items]
    if too_large:
        notes.append(
            f"Batches of {_list(too_large)} are larger than the {num_items} items of a measured pass: there, one batch holds "
            "all."
        )
    idle: dict[int, list[int]] = {}
    pairs: dict[Pair, Pair] = {}
    for batch in map(int, batches):
        num_batches = -(-num_items // min(batch, num_items))
        for each in map(int, workers):
            if each > num_batches:
                idle.setdefault(num_batches, []).append(each)
            pairs.setdefault((min(batch, num_items), min(each, num_batches)), (batch, each))
    for num_batches, useless in idle.items():
        notes.append(
            f"Where a measured pass has {plural(num_batches, 'batch', 'batches')}, more workers than that have "
            f"nothing to do: {_list(sorted(set(useless)))} count as {num_batches} there."
        )
    crowded = [int(each) for each in workers if int(each) > num_cores]
    if crowded:
        notes.append(f"{_list(crowded)} workers are more than the {num_cores} cores of this machine.")
    return tuple(pairs.values()), notes


def conclude(asked: Study, studied: Studied, *, num_items: int, options: Sequence[str]) -> tuple[KindAnswer, list[str]]:
    """The answer for runs of `num_items`, and notes; with `options`, other values of them are tried."""
    times = stretch(asked, studied, num_items)
    regret = rate_pairs(times) if times is not None else ()
    if times is None or regret[0].mean is None:
        return _no_answer(asked, studied, num_items), []
    pair = (regret[0].batch, regret[0].workers)
    settings = LoaderSettings(
        batch=pair[0],
        workers=pair[1],
        prefetch=asked.feed.prefetch,
        pin=asked.feed.pin,
        persistent=asked.feed.persistent,
        kind="preprocessed" if asked.item_kind == "preprocessed" else "raw",
        device=asked.feed.device,
        num_items=num_items,
        compute_batch=suit_computing([studied.laws.steps[model] for model in times.models]),
    )
    notes: list[str] = []
    if options:
        speed = np.argsort(times.seconds[:, times.pairs.index(pair)])
        tuned = tune(asked, settings, options, models=[times.models[row] for row in speed])
        settings, notes = tuned.settings, list(tuned.notes)
    around = _surroundings(asked, studied, num_items)
    parts = [_parts(asked, studied, model, pair, num_items) for model in times.models]
    best = find_best_pairs(times, pair, parts, around)
    lengths = _lengths(asked, studied, pair, num_items)
    return (
        KindAnswer(
            kind=asked.item_kind,
            recommended=settings,
            chance_within=regret[0].chance_within or 0.0,
            interval=regret[0].interval,
            regret=regret,
            top=count_top(times),
            models=best,
            lengths=lengths,
            seconds=_cells(times),
            advice=advise(best, parts, pair, lengths, around),
            verdict=state_verdict(regret, best, around),
            noise=studied.noise,
            measuring_seconds=studied.measuring_seconds,
            grid_seconds=studied.grid_seconds,
            num_runs=len(studied.runs),
            num_items=num_items,
        ),
        notes,
    )


def weigh_kinds(kinds: Sequence[KindAnswer], cost: ItemsPrepared | None) -> tuple[KindAnswer, ...]:
    """The same answers; with both kinds at hand, raw items also say when preparing them pays back."""
    found = {kind.kind: kind for kind in kinds}
    if len(found) == 2 and cost is not None:
        advice = weigh_preparing(found["raw"], found["preprocessed"], cost)
        if advice is not None:
            raw = found["raw"]
            others = tuple(each for each in raw.advice if "--kind raw,preprocessed" not in each.text)
            found["raw"] = msgspec.structs.replace(raw, advice=(*others, advice))
    return tuple(found[kind.kind] for kind in kinds)


def headline(kinds: Sequence[KindAnswer]) -> str:
    """The answer in a few words."""
    recommended = [(kind.kind, kind.recommended) for kind in kinds if kind.recommended is not None]
    parts = [f"{kind} {pair.batch} x {pair.workers}" for kind, pair in recommended]
    return ", ".join(parts) or "no pair works with all models"


def _surroundings(asked: Study, studied: Studied, num_items: int) -> Surroundings:
    num_cold = sum(run.page_cache == "cold" for run in studied.runs)
    return Surroundings(
        item_kind=asked.item_kind,
        modality=asked.dataset.modality,
        num_cores=asked.num_cores,
        num_items=num_items,
        device=asked.feed.device,
        cold_slowdown=studied.laws.cold_slowdown,
        runs_were_cold=num_cold > len(studied.runs) / 2,
    )


def _parts(asked: Study, studied: Studied, model: str, pair: Pair, num_items: int) -> ModelParts:
    return ModelParts(
        model=model,
        composed=compose_run(asked, studied.laws, model, pair, num_items),
        step=studied.laws.steps[model],
        load=studied.laws.load_of(model),
    )


def _lengths(asked: Study, studied: Studied, pair: Pair, num_items: int) -> tuple[LengthPoint, ...]:
    """From one batch to a million items, and at the length that was asked for: there the best pair is the recommended one."""
    smallest = min(batch for batch, _ in asked.pairs)
    points = []
    for length in sorted({smallest, num_items, *(each for each in _LENGTHS if each > smallest)}):
        times = stretch(asked, studied, length)
        assert times is not None  # as long as there is a recommended pair
        means = times.mean_regrets()
        best = order_pairs(means, times.pairs)[0]
        points.append(
            LengthPoint(
                num_items=length,
                batch=times.pairs[best][0],
                workers=times.pairs[best][1],
                seconds=float(times.seconds[:, best].mean()),
                recommended_regret=float(means[times.pairs.index(pair)] - means[best]),
            )
        )
    return tuple(points)


def _cells(times: PairTimes) -> tuple[PairSeconds, ...]:
    return tuple(
        PairSeconds(
            model=model,
            batch=batch,
            workers=workers,
            seconds=None if np.isnan(times.seconds[row, column]) else float(times.seconds[row, column]),
            measured=bool(times.is_measured[row, column]),
        )
        for row, model in enumerate(times.models)
        for column, (batch, workers) in enumerate(times.pairs)
    )


def _no_answer(asked: Study, studied: Studied, num_items: int) -> KindAnswer:
    return KindAnswer(
        kind=asked.item_kind,
        recommended=None,
        chance_within=0.0,
        interval=None,
        regret=rate_pairs(studied.times) if studied.times is not None else (),
        top=count_top(studied.times) if studied.times is not None else (),
        models=(),
        lengths=(),
        seconds=_cells(studied.times) if studied.times is not None else (),
        advice=(),
        verdict=f"{asked.item_kind}: no pair works with all models.",
        noise=studied.noise,
        measuring_seconds=studied.measuring_seconds,
        grid_seconds=studied.grid_seconds,
        num_runs=len(studied.runs),
        num_items=num_items,
    )


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
