"""From timed trainings and searches to what they mean.

In:  TrainingTimed, FeaturesTimed and SearchTimed records
Out: BreakevenFindings: the table of ratios, how searches grow, break-even counts, extrapolations, every assumption in words
Nothing here imports torch, opens a file or reads a clock.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from modelhound.analysis.breakeven import (
    ASSUMED_ERROR,
    CONFIDENCE,
    S1,
    S2,
    Factor,
    Figures,
    Scenario,
    count_models,
    draw_errors,
    draw_means,
    extrapolate,
    interval_of,
)
from modelhound.analysis.wording import number_text, plural, seconds_text
from modelhound.records import (
    BreakEvenCount,
    BreakevenFindings,
    ExtrapolationStep,
    FeaturesTimed,
    RatioRow,
    SearchTimed,
    TrainingTimed,
    WayOfSearching,
)

__all__ = ["Asked", "Timed", "find_breakeven"]

_WARM_UP_RATIO = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Everything that was measured."""

    trainings: Sequence[TrainingTimed]
    features: Sequence[FeaturesTimed]
    searches: Sequence[SearchTimed]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is to be told from it."""

    epochs: int
    own: Scenario | None = None
    assume: Mapping[str, tuple[float, float]]
    price_per_hour: float | None = None
    watts: float | None = None
    seed: int = 0


def find_breakeven(timed: Timed, asked: Asked) -> BreakevenFindings:
    """Everything that follows from the times."""
    warm = replace(timed, trainings=[_without_warm_up(each) for each in timed.trainings])
    return _find(warm, asked, warmed_up=warm.trainings != list(timed.trainings))


def _without_warm_up(training: TrainingTimed) -> TrainingTimed:
    """A first epoch that stands out holds what happens once (kernels are chosen or compiled, processes start): what it took
    beyond the others counts once, however many epochs there are."""
    first, *others = training.epoch_seconds
    if not others or first <= _WARM_UP_RATIO * max(others):
        return training
    extra = first - float(np.mean(others))
    return msgspec.structs.replace(training, epoch_seconds=tuple(others), once_seconds=training.once_seconds + extra)


def _find(timed: Timed, asked: Asked, *, warmed_up: bool) -> BreakevenFindings:
    ways = tuple(_grow(timed.searches, way, asked.seed) for way in ("plain", "engine") if _points(timed.searches, way))
    counts = _count_all(timed, asked)
    training, searching, extrapolated = _extrapolate(timed, asked)
    return BreakevenFindings(
        rows=tuple(_compare(timed, asked)),
        ways=ways,
        counts=tuple(counts),
        training=training,
        searching=searching,
        extrapolated=extrapolated,
        assumptions=tuple(_assumptions(timed, asked, warmed_up=warmed_up)),
        confidence=CONFIDENCE,
        price_per_hour=asked.price_per_hour,
        watts=asked.watts,
    )


def _compare(timed: Timed, asked: Asked) -> list[RatioRow]:
    """The table of ratios: kinds of training against extracting features."""
    rows = []
    for features in timed.features:
        random = np.random.default_rng(asked.seed)
        extract = draw_means(features.extract_seconds, random)
        seconds = {"extract": float(np.mean(features.extract_seconds))}
        ratios, intervals = {}, {}
        for training in timed.trainings:
            if (training.model, training.num_items) != (features.model, features.num_items):
                continue
            total = training.once_seconds + asked.epochs * float(np.mean(training.epoch_seconds))
            drawn = training.once_seconds + asked.epochs * draw_means(training.epoch_seconds, random)
            seconds[training.mode] = total
            ratios[training.mode] = total / seconds["extract"]
            intervals[training.mode] = interval_of(drawn / extract)
        rows.append(
            RatioRow(
                model=features.model,
                num_items=features.num_items,
                num_epochs=asked.epochs,
                seconds=seconds,
                ratios=ratios,
                intervals=intervals,
            )
        )
    return rows


def _points(searches: Sequence[SearchTimed], way: str) -> list[tuple[int, float]]:
    """Number of models and mean seconds, fewest first."""
    spent: dict[int, list[float]] = {}
    for search in searches:
        if search.way == way:
            spent.setdefault(search.num_models, []).append(search.seconds)
    return [(count, float(np.mean(seconds))) for count, seconds in sorted(spent.items())]


def _grow(searches: Sequence[SearchTimed], way: str, seed: int) -> WayOfSearching:
    """A straight line through the points; the interval of its slope from drawing them again, as far off it as they are."""
    points = _points(searches, way)
    counts, seconds = np.array([each[0] for each in points]), np.array([each[1] for each in points])
    start, slope = _fit(counts, seconds)
    off = draw_errors(seconds / (start + slope * counts) - 1, num_fitted=2, seed=seed)
    return WayOfSearching(
        way=way,
        start_seconds=start,
        seconds_per_model=slope,
        interval=interval_of(np.array([_fit(counts, seconds * np.exp(each))[1] for each in off])),
        num_models=tuple(int(count) for count in counts),
        seconds=tuple(float(each) for each in seconds),
    )


def _fit(counts: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Start and slope, neither below zero; one point alone is taken to start at zero."""
    if len(set(counts.tolist())) < 2:
        return 0.0, float(seconds[0] / counts[0])
    slope, start = np.polyfit(counts, seconds, 1)
    if start < 0:
        return 0.0, float((counts * seconds).sum() / (counts * counts).sum())
    return (float(start), float(slope)) if slope > 0 else (float(np.mean(seconds)), 0.0)


def _speedups(searches: Sequence[SearchTimed]) -> tuple[float, ...]:
    """Of the engine over the plain loop, for the larger half of the numbers of models."""
    plain, engine = dict(_points(searches, "plain")), dict(_points(searches, "engine"))
    both = sorted(plain.keys() & engine.keys())
    large = [count for count in both if 2 * count >= max(both)]
    return tuple(plain[count] / engine[count] for count in large)


def _figures(timed: Timed, features: FeaturesTimed) -> Figures | None:
    training = _training_of(timed, features.model, features.num_items)
    if training is None:
        return None
    return Figures(
        model=features.model,
        num_items=features.num_items,
        epoch_seconds=training.epoch_seconds,
        once_seconds=training.once_seconds,
        search_seconds=features.wall_seconds,
    )


def _training_of(timed: Timed, model: str, num_items: int) -> TrainingTimed | None:
    wanted = ("full", model, num_items)
    return next((each for each in timed.trainings if (each.mode, each.model, each.num_items) == wanted), None)


def _count_all(timed: Timed, asked: Asked) -> list[BreakEvenCount]:
    """Every model and number of items, every scenario, both ways of searching."""
    scenarios = [S1, S2, *([asked.own] if asked.own else [])]
    speedups = _speedups(timed.searches)
    counts = []
    for features in timed.features:
        figures = _figures(timed, features)
        if figures is None:
            continue
        for scenario in scenarios:
            counts.append(count_models(figures, scenario, seed=asked.seed))
            if speedups:
                counts.append(count_models(figures, scenario, way="engine", speedup=speedups, seed=asked.seed))
    return counts


@dataclass(frozen=True, slots=True)
class _Law:
    """Seconds grow with items along a line."""

    start: float
    per_item: float
    words: str

    def at(self, num_items: float) -> float:
        return self.start + self.per_item * num_items


def _law(what: str, points: Sequence[tuple[int, float]]) -> _Law:
    counts, seconds = np.array([each[0] for each in points]), np.array([each[1] for each in points])
    start, slope = _fit(counts, seconds)
    once = f"{seconds_text(start)} + " if start > 0 else ""
    words = f"{what} takes {once}{seconds_text(slope)} an item"
    shown = ", ".join(f"{count:,}" for count in counts)
    return _Law(start, slope, f"{words}, a line through {shown} items")


Steps = tuple[ExtrapolationStep, ...]


def _extrapolate(timed: Timed, asked: Asked) -> tuple[Steps, Steps, str]:
    """Of the first model on the most items: training it, searching over one like it, and what follows."""
    pairs = [(each, _training_of(timed, each.model, each.num_items)) for each in timed.features]
    known = [(features, training) for features, training in pairs if training is not None]
    if not asked.assume or not known:
        return (), (), ""
    model = known[0][0].model
    own = [(features, training) for features, training in known if features.model == model]
    features, training = max(own, key=lambda pair: pair[0].num_items)
    epoch = _law("an epoch", [(one.num_items, float(np.mean(two.epoch_seconds))) for one, two in own])
    search = _law("searching over one model", [(one.num_items, float(np.mean(one.wall_seconds))) for one, _ in own])
    base_epochs = asked.epochs
    trained = training.once_seconds + base_epochs * float(np.mean(training.epoch_seconds))
    searched = float(np.mean(features.wall_seconds))
    of_training: list[Factor] = []
    of_search: list[Factor] = []
    for name, (low, high) in asked.assume.items():
        if name == "items":
            of_training.append(_items_factor(epoch, features.num_items, low, high))
            of_search.append(_items_factor(search, features.num_items, low, high))
        elif name == "epochs":
            words = f"{_range(low, high)} epochs instead of {base_epochs} take in proportion"
            of_training.append(Factor(name=name, assumption=words, low=low / base_epochs, high=high / base_epochs))
        else:
            factor = Factor(name=name, assumption=_WORDS[name].format(_range(low, high), model), low=low, high=high)
            of_training.append(factor)
            of_search.append(factor)
    conclusion = _conclude(_one_model(trained, of_training), _one_model(searched, of_search))
    return extrapolate(trained, of_training), extrapolate(searched, of_search), conclusion


def _one_model(seconds: float, factors: Sequence[Factor]) -> tuple[float, float]:
    """Everything but how many models there are."""
    steps = extrapolate(seconds, [factor for factor in factors if factor.name != "models"])
    return steps[-1].seconds if steps else (seconds, seconds)


def _conclude(training: tuple[float, float], searching: tuple[float, float]) -> str:
    """Both low ends belong together, and both high ends: they rest on the same items."""
    counts = sorted(math.floor(one / other) for one, other in zip(training, searching, strict=True))
    models = plural(counts[1], "model") if counts[0] == counts[1] else f"{counts[0]:,} to {counts[1]:,} models"
    return f"With all of this assumed, training one model once takes as long as a search over {models}, one after the other."


_WORDS = {
    "models": "{0} models, all of them trained or searched over, take {0} times as long as {1}",
    "device": "the other device is {0} times as slow, for training and for searching alike",
    "model": "models are on average {0} times as slow as {1}",
}


def _items_factor(law: _Law, num_items: int, low: float, high: float) -> Factor:
    words = f"{_range(low, high)} items instead of {num_items:,}: {law.words}"
    here = law.at(num_items)
    return Factor(name="items", assumption=words, low=law.at(low) / here, high=law.at(high) / here)


def _range(low: float, high: float) -> str:
    return number_text(low) if low == high else f"{number_text(low)} to {number_text(high)}"


def _assumptions(timed: Timed, asked: Asked, *, warmed_up: bool) -> list[str]:
    """What the numbers rest on that was not measured."""
    lines = [scenario.describe() + "." for scenario in (S1, S2, *([asked.own] if asked.own else []))]
    lines.append("All models of a search cost what the model named costs; --assume model=F changes that.")
    lines.append(
        "Every training of a scenario takes as long per epoch as the one measured; hyper-parameters do not matter."
    )
    short = [each for each in timed.trainings if each.num_epochs < asked.epochs]
    if short:
        lines.append(
            f"Only {short[0].num_epochs} of {asked.epochs} epochs were run; the others are taken to last as long."
        )
    if warmed_up:
        lines.append(
            f"What a first epoch took beyond the others counts once where it lasted over {_WARM_UP_RATIO:g} times as long."
        )
    if _speedups(timed.searches):
        lines.append(
            f"All models together are searched {_pace_text(_speedups(timed.searches))} one after the other: measured on the "
            "pool, and assumed of any other models."
        )
    if any(len(each.wall_seconds) == 1 for each in timed.features) or any(
        len(each.epoch_seconds) == 1 for each in timed.trainings
    ):
        lines.append(f"A time of which there is one sample only has a relative error of {ASSUMED_ERROR:.0%}.")
    if asked.price_per_hour is not None:
        lines.append(f"An hour costs {number_text(asked.price_per_hour)}, whatever the machine does in it.")
    if asked.watts is not None:
        lines.append(f"The machine draws {number_text(asked.watts)} W all the time, training or searching.")
    lines.append(
        f"Intervals are {CONFIDENCE:.0%}, from how epochs and searches vary; they know nothing of other machines."
    )
    return lines


def _pace_text(speedups: Sequence[float]) -> str:
    """3.0 times as fast as; 1.4 to 2.0 times as slow as: a factor below one would have to be read twice."""
    low, high = min(speedups), max(speedups)
    word, ends = ("slow", (1 / high, 1 / low)) if high < 1 else ("fast", (low, high))
    times = " to ".join(dict.fromkeys(f"{end:.1f}" for end in ends))
    return f"{times} times as {word} as"
