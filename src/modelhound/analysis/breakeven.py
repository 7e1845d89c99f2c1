"""When does searching for a model take longer than the training it is for?

In:  seconds of an epoch, of searching over one model, and what will be trained
Out: the number of models up to which a search is the smaller part, with an interval; extrapolations, assumption by assumption
Nothing here imports torch, opens a file or reads a clock.

A training of E epochs with R full runs' worth of hyper-parameters takes  T = R * (once + E * epoch)  seconds, a search over k
models  start + k * each.  Up to  (T - start) / each  models the search takes no longer. What is uncertain is drawn again many
times: means of few samples by Student's law, single published figures with an assumed relative error.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from modelhound.records import BreakEvenCount, ExtrapolationStep

__all__ = [
    "ASSUMED_ERROR",
    "CONFIDENCE",
    "PUBLISHED",
    "PUBLISHED_CHAIN",
    "S1",
    "S2",
    "Factor",
    "Figures",
    "Scenario",
    "count_models",
    "draw_errors",
    "draw_means",
    "extrapolate",
    "interval_of",
    "make_scenario",
    "published_counts",
]

CONFIDENCE = 0.95
ASSUMED_ERROR = 0.05
"""Relative standard error of a figure of which there is one sample only."""

_USUAL_ERROR, _USUAL_WEIGHT = 0.02, 2  # of repeated times, and how many repeats that is worth
_NUM_DRAWS, _NUM_LINES = 4000, 400
_HAIR = 1e-9  # of a count: what rounding may take away

Draws = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What will be trained once a model is chosen."""

    name: str
    epochs: float
    sets: float = 1
    """Of hyper-parameters."""
    share: float = 1.0
    """What pruning leaves of the work of all sets."""
    epochs_between: tuple[float, float] | None = None
    """Where the number of epochs is not certain."""
    epochs_chosen: str = "the middle"
    """Which of these `epochs` are."""

    @property
    def runs(self) -> float:
        """Full trainings' worth."""
        return self.sets * self.share

    def describe(self) -> str:
        """In words."""
        low, high = self.epochs_between or (0.0, 0.0)
        between = f" ({self.epochs_chosen} of {low:g} to {high:g})" if self.epochs_between else ""
        if self.sets == 1 and self.share == 1:
            return f"{self.name}: one training of {_counted(self.epochs, 'epoch')}{between}"
        return (
            f"{self.name}: {_counted(self.epochs, 'epoch')}{between} over {_counted(self.sets, 'hyper-parameter set')}, of "
            f"which pruning leaves {self.share:.0%}: {_counted(self.runs, 'full run')}"
        )


def _counted(number: float, what: str) -> str:
    """Parts of a run count too: 2.5 full runs."""
    return f"{number:g} {what}{'' if number == 1 else 's'}"


S1 = Scenario(name="S1", epochs=10)
"""One training, as measured by the research."""

S2 = Scenario(name="S2", epochs=22, sets=5, share=0.5, epochs_between=(20, 30), epochs_chosen="as published, out")
"""A careful one: 5 sets pruned to 2.5 full runs. Of the 20 to 30 epochs, 22 are what the published 500 s are made of."""


def make_scenario(given: Mapping[str, tuple[float, float]]) -> Scenario | None:
    """The user's own, from both ends of epochs, sets and share; a range of epochs is counted in its middle."""
    if not given:
        return None
    (low, high), sets, share = given["epochs"], given.get("sets", (1, 1)), given.get("share", (1, 1))
    between = (low, high) if low != high else None
    return Scenario(name="yours", epochs=(low + high) / 2, sets=sets[0], share=share[0], epochs_between=between)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Times of one model on some items; single figures, or samples of the same thing."""

    model: str
    num_items: int
    epoch_seconds: tuple[float, ...]
    once_seconds: float = 0.0
    """Of every training, beside its epochs."""
    search_seconds: tuple[float, ...]
    """Of searching over this model: extracting features and scoring them."""
    start_seconds: float = 0.0
    """Of every search, however many models."""


PUBLISHED = Figures(
    model="ResNet-50",
    num_items=4000,
    epoch_seconds=(91.0 / 10,),
    # 3.9 s to extract; with a tenth of a second to score, the 4 s a model that the published counts are made of
    search_seconds=(3.9 + 0.1,),
)
"""What the research measured on an RTX A5000 in fp32: ten epochs in 91 s, features in 3.9 s."""


def published_counts() -> tuple[BreakEvenCount, BreakEvenCount]:
    """The counts of both scenarios from the published figures alone: 22 and 125 models."""
    return count_models(PUBLISHED, S1), count_models(PUBLISHED, S2)


def count_models(
    figures: Figures, scenario: Scenario, *, way: str = "plain", speedup: Sequence[float] = (1.0,), seed: int = 0
) -> BreakEvenCount:
    """Up to how many models searching takes no longer than training; `speedup` of a faster way of searching, as samples."""
    random = np.random.default_rng(seed)
    epochs = draw_means(figures.epoch_seconds, random)
    searches = draw_means(figures.search_seconds, random) / draw_means(speedup, random, error=0.0)
    training = scenario.runs * (figures.once_seconds + scenario.epochs * epochs)
    drawn = (training - figures.start_seconds) / searches
    low, high = interval_of(drawn)
    each = float(np.mean(figures.search_seconds)) / float(np.mean(speedup))
    total = _training_seconds(figures, scenario, scenario.epochs)
    num_models = _count(total, figures.start_seconds, each)
    ends = None
    if scenario.epochs_between is not None:
        first, last = (
            _count(_training_seconds(figures, scenario, epochs), figures.start_seconds, each)
            for epochs in scenario.epochs_between
        )
        ends = (first, last)
    interval = (min(num_models, _floor(low)), max(num_models, _floor(high)))
    sentence = (
        f"{scenario.name}, {figures.model} on {figures.num_items:,} items, {_WAYS.get(way, way)}: above {num_models:,} "
        f"[{interval[0]:,}, {interval[1]:,}] models the search takes longer than the training"
        + (f" ({ends[0]:,} to {ends[1]:,} over the range of epochs)" if ends else "")
        + "."
    )
    return BreakEvenCount(
        model=figures.model,
        num_items=figures.num_items,
        scenario=scenario.name,
        way=way,
        training_seconds=total,
        search_seconds_per_model=each,
        num_models=num_models,
        interval=interval,
        over_epochs=ends,
        sentence=sentence,
    )


_WAYS = {"plain": "one model after the other", "engine": "all models together"}


def _training_seconds(figures: Figures, scenario: Scenario, epochs: float) -> float:
    return scenario.runs * (figures.once_seconds + epochs * float(np.mean(figures.epoch_seconds)))


def _count(training_seconds: float, start_seconds: float, seconds_per_model: float) -> int:
    return _floor((training_seconds - start_seconds) / seconds_per_model)


def _floor(value: float) -> int:
    return max(0, math.floor(value * (1 + _HAIR)))


def draw_means(samples: Sequence[float], random: np.random.Generator, *, error: float = ASSUMED_ERROR) -> Draws:
    """The mean, drawn again: around a single sample with the assumed error, around several as these vary.

    Two or three that happen to agree do not prove a machine quiet, so they are pooled with what repeated times usually show.
    """
    values = np.asarray(samples, dtype=np.float64)
    mean, count = float(values.mean()), len(values)
    if count == 1:
        single: Draws = mean * np.exp(random.normal(0.0, error, size=_NUM_DRAWS))
        return single
    squares = float((values / mean - 1) @ (values / mean - 1))
    freedom = count - 1 + _USUAL_WEIGHT
    variance = (squares + _USUAL_WEIGHT * _USUAL_ERROR**2) / freedom
    means: Draws = mean * np.exp(math.sqrt(variance / count) * random.standard_t(freedom, size=_NUM_DRAWS))
    return means


def draw_errors(errors: Draws, *, num_fitted: int, seed: int) -> Draws:
    """Relative errors of as many points, drawn again, [draws, points]; what was fitted to them made the known ones smaller."""
    random = np.random.default_rng(seed)
    freedom = max(0, len(errors) - num_fitted) + _USUAL_WEIGHT
    squares = float(errors @ errors) + _USUAL_WEIGHT * _USUAL_ERROR**2
    spreads = np.sqrt(squares / random.chisquare(freedom, size=(_NUM_LINES, 1)))
    drawn: Draws = spreads * random.standard_normal((_NUM_LINES, len(errors)))
    return drawn


def interval_of(draws: Draws) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """One assumption of an extrapolation; leave it out to switch it off."""

    name: str
    assumption: str
    low: float
    high: float


def extrapolate(seconds: float, factors: Sequence[Factor]) -> tuple[ExtrapolationStep, ...]:
    """Apply one assumption after the other; every step says what it made of the time."""
    low = high = seconds
    steps = []
    for factor in factors:
        low, high = low * factor.low, high * factor.high
        steps.append(
            ExtrapolationStep(
                name=factor.name, assumption=factor.assumption, low=factor.low, high=factor.high, seconds=(low, high)
            )
        )
    return tuple(steps)


PUBLISHED_CHAIN = (
    Factor(name="epochs", assumption="20 epochs instead of 10 take twice as long", low=2, high=2),
    Factor(name="device", assumption="the published GPU is a tenth slower", low=1.1, high=1.1),
    Factor(name="items", assumption="10 to 15 times the items take 10 to 15 times as long", low=10, high=15),
    Factor(name="models", assumption="100 models take 100 times as long as ResNet-50", low=100, high=100),
    Factor(
        name="model",
        assumption="the published models are on average 1.5 times as slow as ResNet-50 (17.63 against 12)",
        low=1.5,
        high=1.5,
    ),
)
"""How the research came from 91 s to 83-125 h for fine-tuning 100 models, against 250-300 h published elsewhere."""
