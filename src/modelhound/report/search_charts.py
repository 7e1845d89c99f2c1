"""The charts of a search.

In:  a ranking, and the records behind it
Out: Charts with plain rows
Long rankings are cut to what a person can read, and the caption says so; no chart grows with the number of models beyond that,
except as one dot each. Nothing here knows pages.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from modelhound.analysis.certainty import pareto_front, scorer_agreement
from modelhound.analysis.phases import total_phases
from modelhound.analysis.search_tables import time_text
from modelhound.analysis.wording import plural, short_name
from modelhound.records import FinalsAnswer, ModelDropped, ModelMeasured, RankedModel, Ranking
from modelhound.report.charts import Chart, Row, log_ticks
from modelhound.report.search_drawing import (
    BEATEN,
    DROPPED,
    FINISHED,
    FIRST,
    FRONT,
    LOST,
    OTHERS,
    WON,
    draw_agreement,
    draw_finals,
    draw_front,
    draw_phases,
    draw_race,
    draw_ranking,
    draw_remaining,
    draw_total,
    title_of,
)
from modelhound.report.search_view import was_run

__all__ = [
    "agreement_chart",
    "finals_chart",
    "phase_charts",
    "race_chart",
    "ranking_chart",
    "remaining_chart",
    "size_chart",
    "speed_chart",
    "total_chart",
]

_MOST_BARS = 24
_MANY_DOTS = 300


def ranking_chart(ranking: Ranking) -> Chart:
    """Score and interval of the best models."""
    shown = ranking.models[:_MOST_BARS]
    names = _short_names(row.model for row in shown)
    rows: tuple[Row, ...] = tuple(
        {
            "place": place,
            "model": names[row.model],
            "rank": row.rank,
            "score": row.score,
            "low": row.interval[0],
            "high": row.interval[1],
            "group": FIRST if row.rank == 1 else OTHERS,
        }
        for place, row in enumerate(shown)
    )
    left_out = len(ranking.models) - len(shown)
    return Chart(
        name="search_ranking",
        title=f"{title_of(ranking.metric)} of the best models, with intervals",
        caption=f"Dots are scores, lines {ranking.confidence:.0%} intervals. Models that share rank 1 "
        "cannot be told from the best by these items."
        + (f" {plural(left_out, 'model')} further down are in the table only." if left_out else ""),
        data=rows,
        draw=lambda data: draw_ranking(data, ranking.metric),
    )


def finals_chart(finals: FinalsAnswer) -> Chart | None:
    """What each finalist is expected to reach, and what it has reached; None where nothing is foretold."""
    shown = [each for each in finals.finalists if each.predicted is not None and each.interval is not None]
    names = _short_names(each.model for each in shown)
    rows: tuple[Row, ...] = tuple(
        {
            "place": place,
            "model": names[each.model],
            "score": each.predicted,
            "low": each.interval[0] if each.interval else None,
            "high": each.interval[1] if each.interval else None,
            "so_far": each.score,
            "chance": each.chance,
            "group": WON if each.place == 1 else LOST,
        }
        for place, each in enumerate(shown)
    )
    if not rows:
        return None
    return Chart(
        name="search_finals",
        title=f"{title_of(finals.metric)} that finalists are expected to reach",
        caption=f"Dots are foretold for {finals.full_epochs} epochs, lines are {finals.confidence:.0%} intervals, crosses what "
        "the short training has reached so far.",
        data=rows,
        draw=lambda data: draw_finals(data, finals.metric),
    )


def speed_chart(ranking: Ranking, measured: Sequence[ModelMeasured]) -> Chart | None:
    """Score against items per second, of those that were run; None where fewer than two were."""
    items = {record.model: record.num_items for record in measured if was_run(record)}
    models = [row for row in ranking.models if row.model in items]
    if len(models) < 2:
        return None
    speeds = {row.model: items[row.model] / max(row.seconds, 1e-9) for row in models}
    rows = _front_rows(models, "items_per_second", speeds, larger_is_better=True)
    left_out = len(ranking.models) - len(models)
    remembered = f" {plural(left_out, 'model')} whose features were remembered did not have to run." if left_out else ""
    return Chart(
        name="search_speed",
        title=f"{title_of(ranking.metric)} against speed",
        caption=f"Up and to the right is better. The line joins the models that no other beats in both.{remembered}",
        data=rows,
        draw=lambda data: _front(data, rows, ranking.metric, "items_per_second", "items per second", "step-before"),
    )


def size_chart(ranking: Ranking) -> Chart | None:
    """Score against parameters; None where fewer than two have any, for which a logarithmic axis has no place."""
    models = [row for row in ranking.models if row.num_parameters > 0]
    if len(models) < 2:
        return None
    sizes = {row.model: float(row.num_parameters) for row in models}
    rows = _front_rows(models, "parameters", sizes, larger_is_better=False)
    left_out = len(ranking.models) - len(models)
    without = f" {plural(left_out, 'model')} without parameters left out." if left_out else ""
    return Chart(
        name="search_size",
        title=f"{title_of(ranking.metric)} against size",
        caption=f"Up and to the left is better. The line joins the models that no other beats in both.{without}",
        data=rows,
        draw=lambda data: _front(data, rows, ranking.metric, "parameters", "parameters", "step-after"),
    )


def race_chart(ranking: Ranking, dropped: Sequence[ModelDropped]) -> Chart:
    """Who left the race when, and with what score."""
    rows: list[Row] = [
        {
            "model": short_name(each.model),
            "items": each.num_items,
            "score": each.score,
            "chance": each.chance,
            "outcome": DROPPED,
        }
        for each in dropped
    ]
    rows += [
        {
            "model": short_name(row.model),
            "items": ranking.num_items,
            "score": row.score,
            "chance": None,
            "outcome": FINISHED,
        }
        for row in ranking.models
    ]
    best = f"best {dropped[0].top}" if dropped else "best"
    return Chart(
        name="search_race",
        title="Where each model left the race",
        caption=f"One dot per model, after the items it was judged on. A model left when its chance of being among the {best} "
        "had become too small.",
        data=tuple(rows),
        draw=lambda data: draw_race(data, ranking.metric),
    )


def remaining_chart(ranking: Ranking, dropped: Sequence[ModelDropped]) -> Chart:
    """How many models were still in the race after how many items."""
    left = len(dropped) + len(ranking.models)
    rows: list[Row] = [{"items": 0, "models": left}]
    for num_items in sorted({each.num_items for each in dropped}):
        left -= sum(each.num_items == num_items for each in dropped)
        rows.append({"items": num_items, "models": left})
    rows.append({"items": max(ranking.num_items, int(rows[-1]["items"] or 0)), "models": left})
    return Chart(
        name="search_remaining",
        title="Models still in the race",
        caption="The area below the line is the work that was done; the area above it, up to the first value, was saved.",
        data=tuple(rows),
        draw=draw_remaining,
    )


def phase_charts(measured: Sequence[ModelMeasured]) -> tuple[Chart, Chart]:
    """Seconds per phase of the models that took longest, and the same as shares."""
    slowest = sorted(measured, key=lambda record: -record.wall_seconds)[:_MOST_BARS]
    names = _short_names(record.model for record in slowest)
    phases = list(_spent(measured))
    rows: list[Row] = []
    for record in slowest:
        parts = _spent([record])
        rows += [
            {
                "model": names[record.model],
                "phase": phase,
                "order": phases.index(phase),
                "seconds": seconds,
                "share": seconds / max(record.wall_seconds, 1e-12),
            }
            for phase, seconds in parts.items()
            if seconds > 0
        ]
    left_out = len(measured) - len(slowest)
    seconds = Chart(
        name="search_phases",
        title="Seconds of each model",
        caption="What several models share is counted to each in equal parts."
        + (f" The {len(slowest)} slowest are shown, {plural(left_out, 'faster one')} left out." if left_out else ""),
        data=tuple(rows),
        draw=lambda data: draw_phases(data, phases, "seconds"),
    )
    shares = Chart(
        name="search_phase_shares",
        title="The same as shares",
        caption="What each model spends its own time on, slowest model first.",
        data=tuple(rows),
        draw=lambda data: draw_phases(data, phases, "share"),
    )
    return seconds, shares


def total_chart(measured: Sequence[ModelMeasured]) -> Chart:
    """Seconds per phase of all models together."""
    totals = _spent(measured)
    whole = max(sum(totals.values()), 1e-12)
    rows: tuple[Row, ...] = tuple(
        {"phase": phase, "order": place, "seconds": seconds, "share": seconds / whole}
        for place, (phase, seconds) in enumerate(totals.items())
    )
    largest = max(totals, key=lambda phase: totals[phase])
    return Chart(
        name="search_time",
        title="Where the time of all models together went",
        caption=f"{largest.capitalize()} takes {totals[largest] / whole:.0%} of {time_text(whole)}.",
        data=rows,
        draw=lambda data: draw_total(data, list(totals)),
    )


def agreement_chart(ranking: Ranking) -> Chart | None:
    """How alike the scorers order the models; None where there is nothing to compare."""
    found = [each for each in scorer_agreement(ranking.models) if each.kendall_tau is not None]
    if len(found) < 2 or len(ranking.models) < 3:
        return None
    names = list(dict.fromkeys(each.first for each in found))
    return Chart(
        name="search_agreement",
        title="How alike the scorers order the models",
        caption=f"Kendall's tau over the {len(ranking.models)} models that were measured to the end: 1 is the same order, 0 no "
        "relation, -1 the reverse. Size alone is the control.",
        data=tuple({"first": each.first, "second": each.second, "tau": each.kendall_tau} for each in found),
        draw=lambda data: draw_agreement(data, names),
    )


def _spent(measured: Sequence[ModelMeasured]) -> dict[str, float]:
    """Phases that took any time."""
    totals = total_phases(measured)
    return {phase: seconds for phase, seconds in totals.items() if seconds > 0} or totals


def _front(data: Any, rows: Sequence[Row], metric: str, name: str, title: str, step: str) -> Any:
    return draw_front(
        data,
        metric,
        name,
        title,
        step=step,
        ticks=log_ticks(row[name] for row in rows),
        sides=sorted({str(row["side"]) for row in rows if row["side"]}),
        has_beaten=any(row["is"] == BEATEN for row in rows),
        is_crowded=len(rows) > _MANY_DOTS,
    )


def _front_rows(
    models: Sequence[RankedModel], name: str, values: dict[str, float], *, larger_is_better: bool
) -> tuple[Row, ...]:
    costs = [-values[row.model] if larger_is_better else values[row.model] for row in models]
    front = pareto_front(costs, [row.score for row in models])
    sides = _choose_labels([values[row.model] for row in models], [row.score for row in models], front)
    return tuple(
        {
            "model": short_name(row.model),
            name: values[row.model],
            "score": row.score,
            "low": row.interval[0],
            "high": row.interval[1],
            "rank": row.rank,
            "is": FRONT if place in set(front) else BEATEN,
            "label": short_name(row.model.partition(":")[2] or row.model, 26) if place in sides else None,
            "side": sides.get(place),
        }
        for place, row in enumerate(models)
    )


def _choose_labels(across: Sequence[float], scores: Sequence[float], front: Sequence[int]) -> dict[int, str]:
    """Which points of the front get their name beside them, best first, so that no two names overlap; and on which side."""
    log_across = [math.log(max(each, 1e-12)) for each in across]
    left, right, low, high = min(log_across), max(log_across), min(scores), max(scores)
    sides: dict[int, str] = {}
    for place in sorted(front, key=lambda each: -scores[each]):
        x = (log_across[place] - left) / ((right - left) or 1)
        y = (scores[place] - low) / ((high - low) or 1)
        near = [
            other
            for other in sides
            if abs((log_across[other] - left) / ((right - left) or 1) - x) < 0.45
            and abs((scores[other] - low) / ((high - low) or 1) - y) < 0.08
        ]
        if not near:
            sides[place] = "left" if x < 0.33 else "right" if x > 0.67 else "center"
    return sides


def _short_names(models: Iterable[str]) -> dict[str, str]:
    """Names that fit an axis and are still different."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for model in models:
        short = short_name(model)
        while short in taken:
            short += "\N{MIDDLE DOT}"
        taken.add(short)
        names[model] = short
    return names
