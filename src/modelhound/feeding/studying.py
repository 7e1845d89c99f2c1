"""Which runs to make: the whole grid, or as few as it takes to be sure.

In:  a Study
Out: a Studied: the table of all models and pairs, measured, composed or believed, and what it rests on
Nothing here recommends anything. Without --grid, runs are composed of loading and computing measured apart; then single runs
are made for real, each the one that improves the choice most for its time, until the pair that looks best is within 2 % of
the best with 99 % probability, or the share of the grid's time that was granted is used up.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.pairs import TOLERANCE, PairTimes, find_unrest, order_pairs, resample_times, scatter
from modelhound.analysis.surface import Belief, believe, choose_next
from modelhound.feeding.ledger import Ledger, Study
from modelhound.feeding.runs import measure_run, warm_up
from modelhound.feeding.sweeping import Laws, compose_run, expect_runs, find_laws
from modelhound.records import FeedMeasured, PairFailed, Progress

__all__ = ["Studied", "stretch", "study"]

_SURE_ENOUGH = 0.99
_LEAST_RUNS = 4
_MARGIN = 0.88  # of the budget: what the whole grid takes is an estimate too
_LEAST_SECONDS = 3.0  # of measuring: where a grid takes seconds, a share of it would be nothing
_MOST_REPRESENTATIVES = 12  # models that take part in a race; more are followed by the laws

Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Studied:
    """What is known at the end of a study."""

    times: PairTimes | None
    """Of runs of the study's length; None where no model works with any pair."""
    laws: Laws
    failures: tuple[PairFailed, ...]
    runs: tuple[FeedMeasured, ...]
    noise: float
    measuring_seconds: float
    grid_seconds: float
    """What all pairs with all models would take, once each."""


def study(asked: Study) -> Studied:
    """Measure what is missing, and put together what follows."""
    ledger = Ledger(asked)
    laws = find_laws(asked, ledger)
    expected = expect_runs(asked, ledger, laws)
    working = [row for row in range(len(asked.models)) if not np.isnan(expected[row]).all()]
    if working:
        if asked.grid:
            _run_grid(asked, ledger, expected)
        else:
            _run_race(asked, ledger, laws, working)
        expected = expect_runs(asked, ledger, laws)
        working = [row for row in working if not np.isnan(expected[row]).all()]
    times = _table(asked, ledger, laws, expected, working) if working else None
    return Studied(
        times=times,
        laws=laws,
        failures=tuple(ledger.failures),
        runs=tuple(run for runs in ledger.runs.values() for run in runs),
        noise=_typical_noise(ledger),
        measuring_seconds=ledger.spent_seconds,
        grid_seconds=float(np.nansum(times.seconds)) if times is not None else 0.0,
    )


def stretch(asked: Study, studied: Studied, num_items: int) -> PairTimes | None:
    """The same table for runs of another length, in proportion to what the laws say."""
    times = studied.times
    if times is None or num_items == asked.num_items:
        return times
    ratios = np.array(
        [
            [
                compose_run(asked, studied.laws, model, pair, num_items).seconds
                / compose_run(asked, studied.laws, model, pair, asked.num_items).seconds
                for pair in times.pairs
            ]
            for model in times.models
        ]
    )
    return dataclasses.replace(times, seconds=times.seconds * ratios, versions=times.versions * ratios)


def _run_grid(asked: Study, ledger: Ledger, expected: Floats) -> None:
    """Every pair with every model, in an order of chance, so that a slow minute of the machine does not hit one pair."""
    cells = [(int(row), int(column)) for row, column in np.argwhere(~np.isnan(expected))]
    done = 0
    for repeat in range(asked.repeats):
        for place in np.random.default_rng(asked.seed + repeat).permutation(len(cells)).tolist():
            asked.watch(Progress(task="measuring all pairs", done=done, total=len(cells) * asked.repeats))
            done += 1
            if len(ledger.runs.get(cells[place], ())) <= repeat:
                _run_cell(asked, ledger, cells[place])
    asked.watch(Progress(task="measuring all pairs", done=done, total=done))


def _run_race(asked: Study, ledger: Ledger, laws: Laws, working: Sequence[int]) -> None:
    rows = _representatives(asked, laws, working)
    num_runs = sum(len(runs) for runs in ledger.runs.values())
    table, num_failures = expect_runs(asked, ledger, laws)[list(rows)], len(ledger.failures)
    while True:
        if len(ledger.failures) > num_failures:
            table, num_failures = expect_runs(asked, ledger, laws)[list(rows)], len(ledger.failures)
        if np.isnan(table).any(axis=0).all():
            return  # no pair is left that works with all
        belief = _believe(asked, ledger, laws, table, rows)
        chance = _chance_of_best(belief.times(seed=asked.seed))
        in_all = float(np.nansum(np.exp(belief.mean))) * len(working) / len(rows)
        allowed = max(_LEAST_SECONDS, _MARGIN * asked.budget * in_all)
        asked.watch(
            Progress(
                task="racing pairs",
                done=min(int(ledger.spent_seconds), int(allowed)),
                total=max(1, int(allowed)),
                detail=f"{chance:.0%} sure" if num_runs else "",
            )
        )
        row, column = choose_next(belief)
        too_long = ledger.spent_seconds + float(np.exp(belief.mean[row, column])) > allowed
        if num_runs >= _LEAST_RUNS and (chance >= _SURE_ENOUGH or too_long):
            return
        _run_cell(asked, ledger, (rows[row], column))
        num_runs += 1


def _believe(asked: Study, ledger: Ledger, laws: Laws, table: Floats, rows: Sequence[int]) -> Belief:
    """Of these models; `table` has a row for each."""
    largest = [laws.steps[asked.models[row]].batches[-1] for row in rows]
    runs = {(rows.index(row), column): runs for (row, column), runs in ledger.runs.items() if row in rows}
    return believe(
        tuple(asked.models[row] for row in rows),
        asked.pairs,
        table,
        {cell: [run.wall_seconds for run in each] for cell, each in runs.items()},
        when={cell: [run.at_seconds for run in each] for cell, each in runs.items()},
        guessed=np.array([[batch > measured for batch, _ in asked.pairs] for measured in largest]),
        unrest=ledger.unrest(),
    )


def _chance_of_best(times: PairTimes) -> float:
    """That the pair that looks best is within the tolerance of the best."""
    versions = times.mean_regret_versions()
    best = order_pairs(times.mean_regrets(), times.pairs)[0]
    return float((versions[:, best] - versions.min(axis=1) <= TOLERANCE).mean())


def _run_cell(asked: Study, ledger: Ledger, cell: tuple[int, int]) -> None:
    model, (batch, workers) = asked.models[cell[0]], asked.pairs[cell[1]]
    network = asked.networks[model]

    def run() -> FeedMeasured:
        if asked.feed.device != "cpu":
            length = min(asked.num_items, len(asked.dataset))
            num_waiting = min(workers * asked.feed.prefetch + 1, -(-length // batch))
            warm_up(network, asked.dataset, asked.feed, batch=min(batch, length), num_waiting=num_waiting)
        return measure_run(
            network,
            asked.dataset,
            asked.feed,
            item_kind=asked.item_kind,
            model=model,
            batch=batch,
            workers=workers,
            num_items=asked.num_items,
        )

    ledger.measure(run, model=model, pair=(batch, workers), phase="run")


def _representatives(asked: Study, laws: Laws, working: Sequence[int]) -> list[int]:
    """All models, or of many as many as a race can have, from the fastest to the slowest."""
    if len(working) <= _MOST_REPRESENTATIVES:
        return list(working)
    by_speed = sorted(working, key=lambda row: laws.steps[asked.models[row]].of(asked.pairs[0][0]))
    places = np.linspace(0, len(by_speed) - 1, _MOST_REPRESENTATIVES).round().astype(int)
    return [by_speed[place] for place in places]


def _seconds(ledger: Ledger) -> dict[tuple[int, int], list[float]]:
    return {cell: [run.wall_seconds for run in runs] for cell, runs in ledger.runs.items()}


def _typical_noise(ledger: Ledger) -> float:
    """Of the median run."""
    seconds = _seconds(ledger)
    unrest = find_unrest(seconds.values(), usual=ledger.unrest())
    typical = np.median([run for runs in seconds.values() for run in runs]) if seconds else 1.0
    return float(scatter(unrest, np.asarray(typical)))


def _table(asked: Study, ledger: Ledger, laws: Laws, expected: Floats, working: Sequence[int]) -> PairTimes:
    """Of all working models: measured where all was measured, else believed."""
    names = tuple(asked.models[row] for row in working)
    if asked.grid:
        runs = {
            (working.index(row), column): seconds
            for (row, column), seconds in _seconds(ledger).items()
            if row in working
        }
        return resample_times(names, asked.pairs, runs, seed=asked.seed, usual=ledger.unrest())
    raced = _representatives(asked, laws, working)
    times = _believe(asked, ledger, laws, expected[raced], raced).times(seed=asked.seed)
    if len(raced) == len(working):
        return times
    return _extend(times, names, [working.index(row) for row in raced], expected[list(working)])


def _extend(times: PairTimes, names: tuple[str, ...], rows: Sequence[int], table: Floats) -> PairTimes:
    """To models that took no part: composed, and corrected by what the others showed of each pair on average."""
    correction = _mean_of_known(np.log(times.seconds / table[list(rows)]), axis=0)
    corrections = _mean_of_known(np.log(times.versions / table[list(rows)]), axis=1)
    seconds, versions = table * np.exp(correction), table * np.exp(corrections)[:, None, :]
    seconds[list(rows)], versions[:, list(rows)] = times.seconds, times.versions
    is_measured = np.zeros(table.shape, np.bool_)
    is_measured[list(rows)] = times.is_measured
    return PairTimes(models=names, pairs=times.pairs, seconds=seconds, versions=versions, is_measured=is_measured)


def _mean_of_known(values: Floats, *, axis: int) -> Floats:
    """Nothing where nothing is known, as of a pair that fails with all models of a race."""
    known = ~np.isnan(values)
    return np.asarray(np.where(known, values, 0.0).sum(axis=axis) / np.maximum(known.sum(axis=axis), 1))
