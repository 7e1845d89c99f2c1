"""What a search waits for: weights, data, the forward pass or scoring.

In:  profiles of configurations, with raw samples
Out: the bottleneck of each with what its removal would bring, where it moves as items grow, and what running less saves
Nothing here imports torch, opens a file or reads a clock.

A job of n items costs  weights + (start of loading + n * loading) + (warm-up + n * forward) + scoring(n)  seconds: four
straight lines in n, of which the highest is the bottleneck. Where the highest changes, the bottleneck moves. Intervals come
from drawing again: the batches with replacement; what a job does once, reading and scoring, by Student's law with the spread
that repeats of it show.
"""

import zlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from modelhound.analysis.job_lines import GROUPS, Line, find_lines, own_scorings, steady_samples
from modelhound.analysis.samples import check_seconds
from modelhound.analysis.wording import items_text, seconds_text, times_text
from modelhound.errors import RequestError
from modelhound.records import (
    BottleneckFound,
    BottleneckMoves,
    ConfigurationProfiled,
    ProfileFindings,
    SavingMeasured,
)

__all__ = ["find_bottlenecks", "repeat_ratio", "repeat_sentence"]

_CONFIDENCE = 0.95
_NUM_DRAWS = 400
_MOST_ITEMS = 1e7
_LEAST_FREEDOM = 2  # two repeats have one degree of freedom, whose law has no variance: the interval would tell nothing
_NOTABLE = 0.05  # of the wall clock
_BUSY = 1.1  # how far the same work may be apart on a quiet machine
_OFTEN = 0.9  # of the draws must show a move for it to have an interval
_CURES = {
    "weights": "with weights for free",
    "data": "with loading for free",
    "forward": "with the forward pass for free",
    "score": "with scoring for free",
}
_NOUNS = {"weights": "the weights", "data": "the data", "forward": "the forward pass", "score": "scoring"}

Draws = npt.NDArray[np.float64]


def find_bottlenecks(records: Sequence[ConfigurationProfiled], *, seed: int = 0) -> ProfileFindings:
    """Everything that follows from the profiles; of times and counts that cannot be, a RequestError."""
    for record in records:
        _check(record)
    jobs = [_Job(record, seed) for record in records]
    return ProfileFindings(
        bottlenecks=tuple(_judge(job) for job in jobs),
        moves=tuple(move for job in jobs if job.record.form != "apart" for move in _find_moves(job)),
        savings=tuple(_find_savings(jobs)),
        unaccounted=max((job.other / job.record.wall_seconds for job in jobs), default=0.0),
        confidence=_CONFIDENCE,
    )


def _check(record: ConfigurationProfiled) -> None:
    what = f"{record.model} {record.configuration}"
    check_seconds(what, (record.wall_seconds,), None)
    if min(record.batch, record.num_batches, record.num_items) < 1:
        raise RequestError(f"cannot use the profile of {what}: expected one item and batch or more, profile it again")


def repeat_ratio(records: Sequence[ConfigurationProfiled]) -> float | None:
    """How far the same work, done twice, was apart: a full model and its twin with another head. 1 is perfect.

    Intervals know how batches of one job vary, not that the machine was busier during another: this does.
    """
    ratios = []
    for record in records:
        if record.form == "apart":
            twins = [each for each in records if each.form == "full" and _same_place(each, record)]
            ratios += [_mean_forward(each) / max(_mean_forward(record), 1e-12) for each in twins]
    return max((max(ratio, 1 / ratio) for ratio in ratios if ratio > 0), default=None)


def repeat_sentence(records: Sequence[ConfigurationProfiled]) -> tuple[str, bool]:
    """The same in words, and whether the machine was too busy for jobs to be compared; empty where nothing was done twice."""
    ratio = repeat_ratio(records)
    if ratio is None:
        return "", False
    said = f"The same work done twice (full and apart) differs by a factor of up to {ratio:.2f}"
    if ratio <= _BUSY:
        return f"{said}.", False
    return f"{said}: the machine was busy, so do not compare jobs of this run.", True


class _Job:
    """One record with its samples drawn again many times."""

    def __init__(self, record: ConfigurationProfiled, seed: int) -> None:
        self.record = record
        self.seconds = {group: sum(map(record.seconds_of, phases)) for group, phases in GROUPS.items()}
        self.other = record.wall_seconds - sum(self.seconds.values())
        self.hidden = max(0.0, sum(record.load_seconds) - record.seconds_of("wait for data"))
        """Loading that goes on beside the forward pass: without that, it would be waited for."""
        random = np.random.default_rng([seed, zlib.crc32(record.key.encode()), record.num_items])
        reads = record.cold_read_seconds if record.cold else record.warm_read_seconds
        self.rates = {
            group: _draw_means(steady_samples(record, GROUPS[group]), random) for group in ("data", "forward")
        }
        """Seconds of a batch after the warm-up; the phases of a batch stay together."""
        self.draws: dict[str, Draws] = {
            "weights": _draw_around(self.seconds["weights"], reads, random),
            "score": _draw_around(self.seconds["score"], _scoring_samples(record), random),
        }
        for group, rates in self.rates.items():
            steady = float(np.mean(steady_samples(record, GROUPS[group])))
            self.draws[group] = self.seconds[group] + (rates - steady) * record.num_batches

    def left_without(self, group: str) -> float:
        """Seconds of the job with these phases for free."""
        return self.record.wall_seconds - self.seconds[group] + (self.hidden if group == "forward" else 0.0)

    def speedups_without(self, group: str) -> Draws:
        """How many times faster that is, of each draw."""
        left = self.wall - self.draws[group] + (self.hidden if group == "forward" else 0.0)
        return np.maximum(1.0, self.wall / np.maximum(left, 1e-9))

    @property
    def wall(self) -> Draws:
        """Of each draw."""
        return sum(self.draws.values(), start=np.full(_NUM_DRAWS, max(0.0, self.other)))


def _draw_means(samples: Sequence[float], random: np.random.Generator) -> Draws:
    values = np.asarray(samples, dtype=np.float64)
    means: Draws = values[random.integers(len(values), size=(_NUM_DRAWS, len(values)))].mean(axis=1)
    return means


def _draw_around(seconds: float, samples: Sequence[float], random: np.random.Generator) -> Draws:
    """Around what the job itself took, as uncertain as a single sample is: the job did it once."""
    if len(samples) < 2:
        return np.full(_NUM_DRAWS, seconds)
    spread = float(np.std(samples, ddof=1))
    return np.maximum(0.0, seconds + spread * random.standard_t(max(_LEAST_FREEDOM, len(samples) - 1), _NUM_DRAWS))


def _scoring_samples(record: ConfigurationProfiled) -> tuple[float, ...]:
    """Of all items, once per head."""
    own = own_scorings(record)
    whole = next((each for each in own if each.num_items >= record.num_items), None)
    if whole is None:
        return ()
    return tuple(seconds * record.num_heads for seconds in whole.seconds)


def _judge(job: _Job) -> BottleneckFound:
    record = job.record
    wall = record.wall_seconds
    bottleneck = max(GROUPS, key=lambda group: job.seconds[group])
    speedups = {group: max(1.0, wall / max(job.left_without(group), 1e-9)) for group in GROUPS}
    interval = _interval(job.speedups_without(bottleneck))
    warm = None
    if record.cold and record.warm_read_seconds:
        saved = record.seconds_of("read weights") - float(np.median(record.warm_read_seconds))
        warm = wall / max(wall - max(0.0, saved), 1e-9)
    share = job.seconds[bottleneck] / wall
    sentence = (
        f"{record.model} {record.configuration}, {record.num_items} items on {record.device}: {_NOUNS[bottleneck]} "
        f"take{'' if bottleneck in ('weights', 'data') else 's'} {share:.0%} of {seconds_text(wall)}; "
        f"{_CURES[bottleneck]} {times_text(speedups[bottleneck])} faster {_times_interval(interval)}"
    )
    if bottleneck == "forward" and job.hidden > _NOTABLE * wall:
        sentence += f", since {seconds_text(job.hidden)} of loading that it hides would be waited for"
    if warm is not None and warm >= 1.05:
        sentence += f", with the weights in the page cache {times_text(warm)}"
    return BottleneckFound(
        model=record.model,
        configuration=record.configuration,
        data=record.data,
        device=record.device,
        bottleneck=bottleneck,
        seconds={**job.seconds, "other": job.other},
        speedups=speedups,
        interval=interval,
        warm_speedup=warm,
        sentence=sentence + ".",
    )


def _find_moves(job: _Job) -> list[BottleneckMoves]:
    record = job.record
    lines = find_lines(record)
    drawn: dict[tuple[str, str], list[float]] = {}
    for number in range(_NUM_DRAWS):
        again = {
            "weights": Line(float(job.draws["weights"][number]), 0.0),
            "score": lines["score"],
            **{
                group: Line(lines[group].start, float(rates[number]) / record.batch)
                for group, rates in job.rates.items()
            },
        }
        for before, after, items in _changes(again):
            drawn.setdefault((before, after), []).append(items)
    moves = []
    for before, after, items in _changes(lines):
        again_items = drawn.get((before, after), [])
        interval = _interval(np.asarray(again_items)) if len(again_items) >= _OFTEN * _NUM_DRAWS else None
        is_measured = items <= record.num_items
        around = f" [{items_text(interval[0])}, {items_text(interval[1])}]" if interval else ""
        moves.append(
            BottleneckMoves(
                model=record.model,
                configuration=record.configuration,
                data=record.data,
                device=record.device,
                before=before,
                after=after,
                num_items=items,
                interval=interval,
                is_measured=is_measured,
                sentence=(
                    f"{record.model} {record.configuration} on {record.device}: up to {items_text(items)}{around} items "
                    f"{_NOUNS[before]} cost{'' if before in ('weights', 'data') else 's'} most, from there on "
                    f"{_NOUNS[after]}{'' if is_measured else f' (extrapolated from {record.num_items:,} items)'}."
                ),
            )
        )
    return moves


def _changes(lines: dict[str, Line]) -> list[tuple[str, str, float]]:
    """Where another line becomes the highest, from one item on."""
    here = 1.0
    top = max(lines, key=lambda group: (lines[group].start + lines[group].slope * here, lines[group].slope))
    changes: list[tuple[str, str, float]] = []
    while True:
        crossings = [
            ((lines[top].start - line.start) / (line.slope - lines[top].slope), group)
            for group, line in lines.items()
            if line.slope > lines[top].slope
        ]
        later = [(items, group) for items, group in crossings if items >= here]
        if not later:
            return changes
        items, group = min(later, key=lambda each: (each[0], -lines[each[1]].slope))
        if items > _MOST_ITEMS:
            return changes
        changes.append((top, group, float(items)))
        top, here = group, items


def _find_savings(jobs: Sequence[_Job]) -> list[SavingMeasured]:
    savings = []
    for job in jobs:
        record = job.record
        beside = [each for each in jobs if _same_place(each.record, record)]
        full = next((each for each in beside if each.record.form == "full"), None)
        if record.form == "part" and full is not None:
            savings.append(_compare(job, [full], "the full model"))
        elif record.form == "joint":
            apart = [*([full] if full else []), *(each for each in beside if each.record.form == "apart")]
            if len(apart) == record.num_heads:
                savings.append(_compare(job, apart, f"{record.num_heads} models run apart"))
    return savings


def _same_place(one: ConfigurationProfiled, other: ConfigurationProfiled) -> bool:
    return (one.model, one.data, one.device) == (other.model, other.data, other.device)


def _compare(job: _Job, against: Sequence[_Job], whom: str) -> SavingMeasured:
    record = job.record
    predicted = sum(each.record.flops_per_item for each in against) / max(record.flops_per_item, 1.0)
    forward_draws = sum(each.rates["forward"] for each in against) / np.maximum(job.rates["forward"], 1e-12)
    own, theirs = _mean_forward(record), sum(_mean_forward(each.record) for each in against)
    forward = theirs / max(own, 1e-12)
    wall = sum(each.record.wall_seconds for each in against) / record.wall_seconds
    wall_draws = sum(each.wall for each in against) / job.wall
    interval, wall_interval = _interval(np.asarray(forward_draws)), _interval(np.asarray(wall_draws))
    return SavingMeasured(
        model=record.model,
        configuration=record.configuration,
        data=record.data,
        device=record.device,
        predicted=predicted,
        forward=forward,
        forward_interval=interval,
        end_to_end=wall,
        end_to_end_interval=wall_interval,
        sentence=(
            f"{record.model} {record.configuration} on {record.device} against {whom}: {times_text(predicted)} fewer "
            f"multiplications, the forward pass {times_text(forward)} faster {_times_interval(interval)}, "
            f"end to end {times_text(wall)} {_times_interval(wall_interval)}."
        ),
    )


def _mean_forward(record: ConfigurationProfiled) -> float:
    return float(np.mean(steady_samples(record, GROUPS["forward"])))


def _interval(draws: Draws) -> tuple[float, float]:
    low, high = np.quantile(draws, [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high)


def _times_interval(interval: tuple[float, float]) -> str:
    low, high = (f"{value:.2f}" if value < 10 else f"{value:.0f}" for value in interval)
    return f"[{low}, {high}]"
