"""What bounds a run, what would help, and the verdict, in words with their evidence.

In:  the rated pairs of one kind of items, and what the run of each model is composed of
Out: one BestPair per model, Advice, a verdict; when preparing pays back
Nothing here measures. A run is bound by start-up where that is half of it, else by the longer of loading and computing.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from modelhound.analysis.loader_model import Composed, LoadLaw, StepLaw
from modelhound.analysis.pairs import TOLERANCE, Pair, PairTimes, order_pairs
from modelhound.analysis.wording import all_models_text, bytes_text, list_text, plural
from modelhound.records import Advice, BestPair, ItemsPrepared, KindAnswer, LengthPoint, PairRegret

__all__ = ["ModelParts", "Surroundings", "advise", "bound_text", "find_best_pairs", "state_verdict", "weigh_preparing"]

_MUCH = 0.5  # of a run
_NOTABLY_COLD = 1.2
_NOTABLY_FASTER = 1.05
_FEW_BATCHES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """What the run of one model with the recommended pair is composed of."""

    model: str
    composed: Composed
    step: StepLaw
    load: LoadLaw


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What else words depend on."""

    item_kind: str
    modality: str
    num_cores: int
    num_items: int
    """Length of the run."""
    device: str
    cold_slowdown: float | None
    runs_were_cold: bool
    """Whether the measured runs themselves had to read from the disk."""

    @property
    def loading(self) -> str:
        """What loading an item mostly is."""
        if self.item_kind == "preprocessed":
            return "disk" if self.runs_were_cold else "reading"
        if self.runs_were_cold and (self.cold_slowdown or 1.0) > 1 / _MUCH:
            return "disk"
        return "tokenising" if self.modality == "text" else "decode"


def find_best_pairs(
    times: PairTimes, pair: Pair, parts: Sequence[ModelParts], around: Surroundings
) -> tuple[BestPair, ...]:
    """For each model what would be best for it alone, and what bounds it with the pair for all."""
    column = times.pairs.index(pair)
    found = []
    for row, each in enumerate(parts):
        best = order_pairs(times.seconds[row], times.pairs)[0]
        batch, workers = times.pairs[best]
        seconds, recommended = float(times.seconds[row, best]), float(times.seconds[row, column])
        item_step = each.step.of(pair[0]) / pair[0]
        found.append(
            BestPair(
                model=each.model,
                batch=batch,
                workers=workers,
                seconds=seconds,
                recommended_seconds=recommended,
                regret=recommended / seconds - 1,
                bound=_bound(each, pair, around),
                num_cores_needed=each.load.item_seconds(pair[0], min(pair[1], 1)) / item_step,
                speedup_if_free=max(1.0, each.composed.seconds / each.composed.step_seconds),
            )
        )
    return tuple(found)


def advise(
    best: Sequence[BestPair],
    parts: Sequence[ModelParts],
    pair: Pair,
    lengths: Sequence[LengthPoint],
    around: Surroundings,
) -> tuple[Advice, ...]:
    """What bounds the run, what would help, and what depends on the length of the run."""
    advice = [_advise_on_bounds(best, parts, pair, around)]
    advice += _advise_on_cores(best, parts, pair, around)
    advice += _advise_on_cold_pages(around)
    advice += _advise_on_length(pair, lengths)
    if around.item_kind == "raw" and any(each.bound == "decode" for each in best):
        advice.append(
            Advice(
                text="Decoding is what most of the time goes into: see with --kind raw,preprocessed whether preparing pays.",
                evidence=f"{sum(each.bound == 'decode' for each in best)} of {plural(len(best), 'model')} wait for it.",
            )
        )
    return tuple(advice)


def state_verdict(regret: Sequence[PairRegret], best: Sequence[BestPair], around: Surroundings) -> str:
    """The answer in a few sentences."""
    first = regret[0]
    if first.mean is None or first.interval is None or first.chance_within is None:
        return f"{around.item_kind}: no pair works with all models."
    others = [each for each in regret[1:] if each.as_good]
    low, high = first.interval
    sentences = [
        f"{around.item_kind}: batch {first.batch} {_workers_text(first.workers)} suits {all_models_text(len(best))}: mean "
        f"regret {first.mean:.1%} [{low:.1%}, {high:.1%}] in runs of {around.num_items} items, within {TOLERANCE:.0%} of the "
        f"best pair with {first.chance_within:.0%} probability."
    ]
    if others:
        names = list_text([f"{each.batch} x {each.workers}" for each in others])
        sentences.append(f"As good within noise: {names}.")
    bounds = sorted({each.bounds for each in best}, key=lambda bounds: -sum(each.bounds == bounds for each in best))
    main = [each for each in best if each.bounds == bounds[0]]
    gain = float(np.median([each.speedup_if_free for each in main]))
    free = (
        f"with loading for free {gain:.1f}x faster" if gain >= _NOTABLY_FASTER else "faster loading would bring nothing"
    )
    sentences.append(f"{bound_text(bounds[0]).capitalize()} ({len(main)} of {len(best)}): {free}.")
    if _is_too_short(regret, best, around):
        sentences.append(
            "The run is too short to tell pairs apart: what they differ in is little more than noise or start-up; "
            "use more items."
        )
    return " ".join(sentences)


def bound_text(bounds: Sequence[str]) -> str:
    """decode-bound; compute- and loading-bound."""
    return f"{'- and '.join(bounds)}-bound"


def weigh_preparing(raw: KindAnswer, prepared: KindAnswer, cost: ItemsPrepared) -> Advice | None:
    """When preprocessing pays back: seconds saved per run against the seconds and bytes that it takes."""
    if raw.recommended is None or prepared.recommended is None:
        return None
    seconds = {
        each.kind: {model.model: model.recommended_seconds / each.num_items for model in each.models}
        for each in (raw, prepared)
    }
    shared = [model for model in seconds["raw"] if model in seconds["preprocessed"]]
    if not shared:
        return None
    saved = [(seconds["raw"][model] - seconds["preprocessed"][model]) * raw.num_items for model in shared]
    spent = cost.seconds / cost.num_items * raw.num_items
    size = cost.prepared_bytes / cost.num_items * raw.num_items
    original = f", beside {bytes_text(cost.raw_bytes / cost.num_items * raw.num_items)}" if cost.raw_bytes else ""
    mean = float(np.mean(saved))
    evidence = (
        f"Preparing takes {spent:.1f} s and {bytes_text(size)}{original} for {raw.num_items} items; a run of one model takes "
        f"{np.mean([seconds['raw'][each] for each in shared]) * raw.num_items:.2f} s raw and "
        f"{np.mean([seconds['preprocessed'][each] for each in shared]) * raw.num_items:.2f} s preprocessed, on average."
    )
    if mean <= TOLERANCE * float(np.mean([seconds["raw"][each] for each in shared])) * raw.num_items:
        return Advice(
            text=f"Preprocessing does not pay: runs are not shorter by more than {TOLERANCE:.0%}.", evidence=evidence
        )
    num_runs = max(1, int(np.ceil(spent / mean)))
    return Advice(
        text=f"Preprocessing pays back after {plural(num_runs, 'run')}, a run being one model over the "
        f"data: each is {mean:.2f} s shorter.",
        evidence=evidence,
    )


def _bound(parts: ModelParts, pair: Pair, around: Surroundings) -> str:
    composed, step = parts.composed, parts.step
    num_workers = pair[1]
    computing = "copy" if step.copy_share > _MUCH else "compute"
    if num_workers:
        starting = composed.first_batch_seconds + parts.load.stop_of(num_workers)
        if starting > _MUCH * composed.seconds:
            return "start-up"
    loading = composed.load_seconds
    if num_workers and composed.shared_seconds >= 0.99 * composed.seconds:
        # cores are what is short: whoever takes more of them
        loading = parts.load.item_seconds(pair[0], 1) * around.num_items
        return around.loading if loading > composed.step_seconds * step.num_busy_cores else computing
    return around.loading if loading > composed.step_seconds else computing


def _advise_on_bounds(
    best: Sequence[BestPair], parts: Sequence[ModelParts], pair: Pair, around: Surroundings
) -> Advice:
    texts = []
    for bounds in dict.fromkeys(each.bounds for each in best):
        of_bound = [each for each in best if each.bounds == bounds]
        gains = [each.speedup_if_free for each in of_bound]
        names = list_text([each.model for each in of_bound], most=3)
        faster = " to ".join(dict.fromkeys((f"{min(gains):.1f}x", f"{max(gains):.1f}x")))
        who = f"{' and '.join(bounds)} {'bound' if len(bounds) > 1 else 'bounds'} {names}"
        texts.append(f"{who} (loading for free: {faster} faster)")
    load = parts[0].load
    rate = max(1, pair[1]) / load.item_seconds(*pair)
    # what processes were measured to do in fewer of them, or in a run that was over soon, no core does
    most = around.num_cores / load.item_seconds(pair[0], min(pair[1], 1))
    loaded = f"{rate:.0f} items/s are" if rate <= most else f"At most {most:.0f} items/s can be"
    among = "" if rate <= most else f" on {plural(around.num_cores, 'core')}"
    steps = [each.step.of(pair[0]) / pair[0] for each in parts]
    return Advice(
        text=f"{'; '.join(texts)}.",
        evidence=f"{loaded} loaded {_workers_text(pair[1])}{among} where nothing computes; "
        f"{' to '.join(dict.fromkeys(f'{1 / each:.0f}' for each in (max(steps), min(steps))))} items/s are computed on "
        f"{around.device} where nothing loads.",
    )


def _advise_on_cores(
    best: Sequence[BestPair], parts: Sequence[ModelParts], pair: Pair, around: Surroundings
) -> list[Advice]:
    by_need = sorted(best, key=lambda each: -each.num_cores_needed)
    most, least = by_need[0], by_need[-1]
    item = parts[0].load.item_seconds(pair[0], min(pair[1], 1))
    enough = f"there are {around.num_cores}" if around.num_cores > 1 else "there is 1"
    return [
        Advice(
            text=f"To keep {around.device} busy, {most.model} needs {_cores_text(most)} cores that load"
            + (f" and {least.model} {_cores_text(least)}" if least is not most else "")
            + f"; {enough}.",
            evidence=f"One core loads an item in {item * 1e3:.2f} ms.",
        )
    ]


def _advise_on_cold_pages(around: Surroundings) -> list[Advice]:
    if around.cold_slowdown is None:
        return []
    slower = around.cold_slowdown
    if slower < _NOTABLY_COLD:
        text = "The disk is no bottleneck: the first pass over files that are not in memory is about as fast."
    else:
        text = f"The first pass over files that are not in memory yet takes {slower:.1f}x as long to load: the disk bounds it."
    return [Advice(text=text, evidence="Loading was measured once with the files dropped from the page cache.")]


def _advise_on_length(pair: Pair, lengths: Sequence[LengthPoint]) -> list[Advice]:
    changes = [
        (earlier, later)
        for earlier, later in itertools.pairwise(lengths)
        if (later.batch, later.workers) != (earlier.batch, earlier.workers)
    ]
    if not changes:
        return []
    last = changes[0][0]  # between two lengths nothing was looked at
    steps = [f"up to {last.num_items} items {last.batch} x {last.workers}"]
    steps += [f"from {later.num_items} items {later.batch} x {later.workers}" for _, later in changes]
    worst = max(lengths, key=lambda each: each.recommended_regret)
    if worst.recommended_regret <= TOLERANCE:
        return []
    return [
        Advice(
            text=f"The best pair depends on the length of the run: {list_text(steps)}.",
            evidence=f"{pair[0]} x {pair[1]} takes up to {1 + worst.recommended_regret:.3g}x as long at other lengths "
            f"({worst.num_items} items); composed of start-up, loading and computing.",
        )
    ]


def _is_too_short(regret: Sequence[PairRegret], best: Sequence[BestPair], around: Surroundings) -> bool:
    usable = [each for each in regret if each.mean is not None]
    num_batches = max(-(-around.num_items // each.batch) for each in usable)
    alike = sum(each.as_good for each in usable) > _MUCH * len(usable)
    starting = sum(each.bound == "start-up" for each in best) > _MUCH * len(best)
    return len(usable) > 1 and (num_batches < _FEW_BATCHES or (alike and starting))


def _cores_text(best: BestPair) -> str:
    return f"{best.num_cores_needed:.1f}" if best.num_cores_needed >= 0.1 else "less than 0.1"


def _workers_text(workers: int) -> str:
    return f"with {plural(workers, 'worker')}" if workers else "without workers"
