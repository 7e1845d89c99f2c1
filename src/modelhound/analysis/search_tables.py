"""The tables of a search: what each column is called and how its values are written, in a terminal and on a page alike.

In:  a Ranking, or a FinalsAnswer
Out: columns of texts by name, and what each is sorted by
Nothing here knows how wide a place there is: whoever shows a table leaves out what does not fit.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from modelhound.analysis.finals_wording import STATES
from modelhound.analysis.wording import (
    count_text,
    duration_text,
    metric_interval_text,
    metric_text,
    number_text,
    score_text,
)
from modelhound.records import FinalsAnswer, RankedModel, Ranking

__all__ = ["TextColumn", "finals_columns", "ranking_columns", "short_chance_text", "time_text"]

_UNKNOWN = "–"
_LONG_SECONDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumn:
    """One column, a text for each row."""

    texts: tuple[str, ...]
    values: tuple[float | None, ...]
    """What rows are sorted by; None where only the text can say, or nothing is known."""
    is_number: bool = True
    """Whether each text is one number."""
    note: str = ""
    """What it means, where the name does not say it."""


def ranking_columns(ranking: Ranking, *, top: int | None = None) -> dict[str, TextColumn]:
    """Of the first `top` models, or of all; a scorer on which the score rests alone has no column of its own."""
    rows = ranking.models[:top]
    metric = ranking.metric
    scorers = list(dict.fromkeys(name for row in rows for name in row.scores))
    others = [name for name in scorers if not _is_the_score(rows, name)]
    return {
        "rank": TextColumn(
            texts=tuple(f"{row.rank}{'=' if row.tied else ' '}" for row in rows),
            values=tuple(float(row.rank) for row in rows),
            note="with = where several share it",
        ),
        "model": _names(row.model for row in rows),
        "score": TextColumn(
            texts=tuple(metric_text(metric, row.score) for row in rows),
            values=tuple(row.score for row in rows),
            note=f"{metric} of {' and '.join(ranking.rests_on)}",
        ),
        "interval": TextColumn(
            texts=tuple(metric_interval_text(metric, row.interval) for row in rows),
            values=tuple(row.interval[0] for row in rows),
            is_number=False,
            note=f"of the score, {ranking.confidence:.0%}",
        ),
        **{name: _scorer(rows, metric, name) for name in others},
        "params": TextColumn(
            texts=tuple(count_text(row.num_parameters) for row in rows),
            values=tuple(float(row.num_parameters) for row in rows),
            note="parameters",
        ),
        "time": TextColumn(
            texts=tuple(time_text(row.seconds) for row in rows),
            values=tuple(row.seconds for row in rows),
            note="its share of the search",
        ),
        "by size": TextColumn(
            texts=tuple(f"#{row.size_rank}" for row in rows),
            values=tuple(float(row.size_rank) for row in rows),
            note="its place in a list ordered by size alone, the control",
        ),
    }


def finals_columns(finals: FinalsAnswer) -> dict[str, TextColumn]:
    """Of every finalist, best first."""
    rows, metric = finals.finalists, finals.metric
    places = [row.place for row in rows]
    return {
        "place": TextColumn(
            texts=tuple(f"{place}{'=' if places.count(place) > 1 else ' '}" for place in places),
            values=tuple(map(float, places)),
            note="with = where several share it",
        ),
        "model": _names(row.model for row in rows),
        "chance": TextColumn(
            texts=tuple(short_chance_text(row.chance) for row in rows),
            values=tuple(row.chance for row in rows),
            note="of being the best finalist",
        ),
        "so far": _metric(metric, [row.score for row in rows], f"{metric} of items it did not learn from"),
        "epochs": TextColumn(
            texts=tuple(str(row.num_epochs) for row in rows),
            values=tuple(float(row.num_epochs) for row in rows),
            note="of fine-tuning behind it",
        ),
        f"after {finals.full_epochs} epochs": _metric(
            metric, [row.predicted for row in rows], f"{metric} foretold for the whole of fine-tuning"
        ),
        f"{finals.confidence:.0%} interval": TextColumn(
            texts=tuple(
                _UNKNOWN if row.interval is None else metric_interval_text(metric, row.interval) for row in rows
            ),
            values=tuple(None if row.interval is None else row.interval[0] for row in rows),
            is_number=False,
            note=f"of what is foretold for {finals.full_epochs} epochs",
        ),
        "rate": TextColumn(
            texts=tuple(_UNKNOWN if row.rate is None else number_text(row.rate) for row in rows),
            values=tuple(row.rate for row in rows),
            note="the learning rate that suited it",
        ),
        "time": TextColumn(
            texts=tuple(time_text(row.seconds) for row in rows), values=tuple(row.seconds for row in rows)
        ),
        "raced": _names(STATES[row.state] for row in rows),
    }


def short_chance_text(chance: float) -> str:
    """62%; what resampling cannot tell from certain is >99%."""
    return ">99%" if chance > 0.99 else f"{chance:.0%}"


def time_text(seconds: float) -> str:
    """12.3 s, also of what takes milliseconds: a column is read in one unit, until it takes minutes."""
    if seconds >= _LONG_SECONDS:
        return duration_text(seconds)
    return "<0.1 s" if 0 < seconds < 0.05 else f"{seconds:.1f} s"


def _names(texts: Iterable[str]) -> TextColumn:
    given = tuple(texts)
    return TextColumn(texts=given, values=(None,) * len(given), is_number=False)


def _is_the_score(rows: Sequence[RankedModel], scorer: str) -> bool:
    return all(row.scores.get(scorer) == row.score for row in rows)


def _scorer(rows: Sequence[RankedModel], metric: str, name: str) -> TextColumn:
    values = tuple(row.scores.get(name) for row in rows)
    return TextColumn(texts=tuple(score_text(metric, name, value) for value in values), values=values)


def _metric(metric: str, values: Sequence[float | None], note: str) -> TextColumn:
    texts = tuple(_UNKNOWN if value is None else metric_text(metric, value) for value in values)
    return TextColumn(texts=texts, values=tuple(values), note=note)
