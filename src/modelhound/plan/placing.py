"""Decide which of many workers runs which models, so that shared prefixes stay together and all are done at the same time.

In:  one chain of segments per model, the machine's rates, how fast each worker is
Out: a Placement, which is plain data: for every worker parcels of models, one after the other

Sorted by fingerprints, the models are the leaves of the trees of shared prefixes from left to right (see `tree`), and what one
shares with all before it is what it shares with its neighbour. So a row of neighbours costs its first model in full and of each
other model what is new in it, and cutting the row in two costs once more what both sides share. Every worker gets one such row.
How long the rows are is found by bisection: the least time in which the workers get through, each filling its row up to it.

A row is cut once more, into parcels, where hardly anything is shared: what is lost with a worker, or moved to an idle one, is a
parcel. Nothing here imports torch, opens a file or reads a clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from modelhound.errors import RequestError
from modelhound.plan.chain import Chain, Costs, count_shared
from modelhound.plan.tree import sort_chains

__all__ = ["Parcel", "Placement", "place_chains"]

_PRECISION = 1e-3  # of the time that bisection looks for
_MOST_PARCELS = 16
_FIRST_PART = 0.6  # of what is left: the next parcel; the last ones are short, so that they can be moved
_LEAST_PARCEL = 0.03  # of a worker's share
_WORTH_CUTTING = 0.5  # of what comes after a cut: what may be run again for it
_WINDOW = 0.4  # of what comes after a cut: how far it may move to where less is shared
_MISSED = 0.3  # seconds lost for each by which a piece is longer or shorter than is best
_WORTH_MOVING = 2.5  # times what is run again for it
_SHORTER = 0.8  # of a parcel: what is cut off may take, or else it may as well be moved whole

_Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parcel:
    """Models that are run together by one worker."""

    models: tuple[str, ...]
    seconds: float
    """Predicted, on a worker of speed 1 that has its items, what it shares with other parcels included."""
    alone: tuple[float, ...] = ()
    """The same of each model as the first of a parcel; empty where the parcel cannot be cut."""
    new: tuple[float, ...] = ()
    """And of each model after its left neighbour."""

    def cut(self, seconds: float) -> "tuple[Parcel, Parcel] | None":
        """In two, the second of about that length, where little is run twice; None where that is not worth it."""
        if len(self.alone) < 2:
            return None
        alone, new = np.array(self.alone), np.array(self.new)
        tails = alone[1:] + np.append(np.cumsum(new[:1:-1])[::-1], 0.0)  # of the second part, if it began at each model
        again = alone[1:] - new[1:]
        lost = np.where(tails >= _WORTH_MOVING * again, again + _MISSED * np.abs(tails - seconds), np.inf)
        place = int(np.argmin(lost)) + 1
        if lost[place - 1] == np.inf:
            return None
        parts = self._part(0, place), self._part(place, len(self.models))
        return parts if parts[1].seconds <= _SHORTER * self.seconds else None

    def without(self, is_done: Callable[[str], bool]) -> "Parcel":
        """What is left of it; models whose left neighbour is not run again have to run alone what they share with it."""
        left = [place for place, model in enumerate(self.models) if not is_done(model)]
        models = tuple(self.models[place] for place in left)
        if not self.alone:
            return Parcel(models=models, seconds=self.seconds * len(models) / max(1, len(self.models)))
        alone = tuple(self.alone[place] for place in left)
        there = set(left)
        new = tuple((self.new if place - 1 in there else self.alone)[place] for place in left)
        return Parcel(models=models, seconds=sum(alone[:1]) + sum(new[1:]), alone=alone, new=new)

    def _part(self, start: int, stop: int) -> "Parcel":
        alone, new = self.alone[start:stop], self.new[start:stop]
        return Parcel(models=self.models[start:stop], seconds=alone[0] + sum(new[1:]), alone=alone, new=new)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which worker runs what."""

    shares: tuple[tuple[Parcel, ...], ...]
    """By worker, in the order of running; empty where there is nothing to do for it."""
    seconds: float
    """Until the last worker is done, by prediction."""
    least_seconds: float
    """No placement is faster: all work evenly spread with nothing run twice, or the longest model alone."""
    num_inputs: tuple[int, ...]
    """By worker: how many kinds of decoded items it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """All models from left to right."""

    models: tuple[str, ...]
    inputs: tuple[str, ...]
    alone: _Seconds
    """Of each model by itself, its input included."""
    new: _Seconds
    """Of each model after its left neighbour."""
    until: _Seconds
    """Of all models up to and with each, by one worker."""
    own_alone: _Seconds
    own_new: _Seconds
    """The same without what it takes to get the items."""

    def seconds(self, start: int, stop: int) -> float:
        """Of these neighbours, by one worker."""
        return float(self.alone[start] + self.until[stop - 1] - self.until[start])

    def parcel(self, start: int, stop: int) -> Parcel:
        return Parcel(
            models=self.models[start:stop],
            seconds=float(self.own_alone[start] + self.own_new[start + 1 : stop].sum()),
            alone=tuple(self.own_alone[start:stop].tolist()),
            new=tuple(self.own_new[start:stop].tolist()),
        )


def place_chains(
    chains: Sequence[Chain],
    *,
    num_items: int,
    costs: Costs,
    speeds: Sequence[float],
) -> Placement:
    """Spread the models over workers of these speeds; each decodes the items for itself, as far as `costs` say that it takes
    time, and brings them into the forms that its models want."""
    if not chains or not speeds:
        raise RequestError(f"cannot place {len(chains)} models on {len(speeds)} workers: expected at least one of each")
    if min(speeds) <= 0:
        raise RequestError(f"cannot place models on a worker of speed {min(speeds)!r}: expected more than 0")
    row = _line_up(chains, num_items, costs)
    total = float(row.until[-1] + row.alone[0] - row.new[0])
    least = max(total / sum(speeds), float(row.alone.max()) / max(speeds))
    cuts = _cut_evenly(row, speeds, least)
    shares = tuple(_cut_share(row, start, stop) if stop > start else () for start, stop in cuts)
    taken = [
        row.seconds(start, stop) / speed for (start, stop), speed in zip(cuts, speeds, strict=True) if stop > start
    ]
    return Placement(
        shares=shares,
        seconds=max(taken),
        least_seconds=least,
        num_inputs=tuple(len(set(row.inputs[start:stop])) for start, stop in cuts),
    )


def _line_up(chains: Sequence[Chain], num_items: int, costs: Costs) -> _Row:
    """Weights of the next model are read while one runs, so that each takes the longer of the two; the first has to wait."""
    keyed = sort_chains(chains)
    size = len(keyed)
    run, read, run_new, read_new, feed, begun = (np.zeros(size) for _ in range(6))
    own = -(-num_items // costs.batch_items) * costs.launch_seconds + costs.score_seconds
    before: tuple[str, ...] = ()
    last: Chain | None = None
    for place, (prints, chain) in enumerate(keyed):
        same_input = last is not None and last.input == chain.input
        shared = count_shared(before, prints) if same_input else 0
        running = [num_items * segment.run_seconds(costs.flops_per_second) for segment in chain.segments]
        reading = [segment.weight_bytes / costs.weight_bytes_per_second for segment in chain.segments]
        run[place], read[place] = sum(running) + own, sum(reading)
        run_new[place], read_new[place] = sum(running[shared:]), sum(reading[shared:])
        if not shared == len(prints) == len(before):  # else it is the same network under another name
            run_new[place] += own
        feed[place] = num_items * costs.feed_seconds([chain.input])
        # whoever has the left neighbour has decoded the items
        begun[place] = 0.0 if same_input else feed[place] - num_items * costs.decode_seconds_per_item
        before, last = prints, chain
    ahead = np.append(read_new[1:], 0.0)
    new = np.maximum(run_new, ahead) + begun
    return _Row(
        models=tuple(chain.model for _, chain in keyed),
        inputs=tuple(chain.input for _, chain in keyed),
        alone=read + np.maximum(run, ahead) + feed,
        new=new,
        until=np.cumsum(new),
        own_alone=read + np.maximum(run, ahead),
        own_new=new - begun,
    )


def _cut_evenly(row: _Row, speeds: Sequence[float], least: float) -> list[tuple[int, int]]:
    """Start and stop of each worker's models, such that the last is done as early as can be."""
    low, high = least, row.seconds(0, len(row.models)) / min(speeds)
    best = _fill(row, speeds, high)
    assert best is not None
    at_once = _fill(row, speeds, low)
    if at_once is not None:
        return at_once
    while high - low > _PRECISION * least:
        middle = (low + high) / 2
        cuts = _fill(row, speeds, middle)
        if cuts is None:
            low = middle
        else:
            best, high = cuts, middle
    return best


def _fill(row: _Row, speeds: Sequence[float], seconds: float) -> list[tuple[int, int]] | None:
    """Give every worker as much as it can do in that time; None where something is left over."""
    cuts: list[tuple[int, int]] = []
    start, total = 0, len(row.models)
    for speed in speeds:
        if start < total:
            room = seconds * speed * (1 + 1e-12) - row.alone[start] + row.until[start]
            stop = int(np.searchsorted(row.until, room, side="right")) if room >= row.until[start] else start
        else:
            stop = start
        cuts.append((start, stop))
        start = stop
    return cuts if start == total else None


def _cut_share(row: _Row, start: int, stop: int) -> tuple[Parcel, ...]:
    """One worker's models as parcels, long ones first, cut where little is shared."""
    again = row.own_alone - row.own_new  # what a cut before each model costs
    end = row.until[stop - 1]
    least = _LEAST_PARCEL * row.seconds(start, stop)
    places = [start]
    while (left := end - row.until[places[-1]]) > 2 * least and len(places) < _MOST_PARCELS:
        wanted, reach = row.until[places[-1]] + _FIRST_PART * left, _WINDOW * left * (1 - _FIRST_PART)
        first = max(places[-1] + 1, int(np.searchsorted(row.until, wanted - reach)))
        last = min(stop - 1, max(first, int(np.searchsorted(row.until, wanted + reach))))
        if first > last:
            break
        place = first + int(np.argmin(again[first : last + 1]))
        if again[place] > _WORTH_CUTTING * (end - row.until[place]):
            break
        places.append(place)
    return tuple(row.parcel(begin, end) for begin, end in zip(places, [*places[1:], stop], strict=True) if end > begin)
