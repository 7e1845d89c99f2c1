"""All scorers on all items of a model; what has to be learned for that, for many models at once.

In:  the layers of one model, as its features are there
Out: a Judgement of it, at once or as soon as enough models wait for what they have in common
Nothing here knows a race, or what becomes of a model that cannot be judged. What scorers said of the same features before is
remembered (see `verdicts`).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modelhound.measuring.gathering import Gathering
from modelhound.measuring.scoring import Job, begin_layers, best_layer
from modelhound.measuring.verdicts import Judged, Verdicts
from modelhound.meter import Meter
from modelhound.records import PhaseSamples
from modelhound.scores import MOST_TOGETHER, Begun, FeatureSet, finish

__all__ = ["Judge", "Judgement", "Opened"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Opened:
    """A model of which everything has been said but what is learned."""

    model: str
    layers: list[FeatureSet]
    kept_as: str | None
    begun: list[Begun]
    """One for each layer; none where all is remembered."""
    judged: Judged | None
    """Where it is remembered."""
    phases: tuple[PhaseSamples, ...]
    wall_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judgement:
    """What became of it."""

    model: str
    judged: Judged
    num_layers: int
    features: torch.Tensor
    """Of the layer that was judged best."""
    phases: tuple[PhaseSamples, ...]
    wall_seconds: float
    peak_memory_bytes: int


class Judge:
    """Judges models; several threads may ask at once."""

    def __init__(self, job: Job, verdicts: Verdicts) -> None:
        self._job, self._verdicts = job, verdicts
        self._waiting: Gathering[Opened] = Gathering(most=1, room_bytes=0)

    def make_room(self, num_bytes: int) -> None:
        """Models may wait for others from now on, with as many bytes as this."""
        self._waiting = Gathering(most=MOST_TOGETHER, room_bytes=num_bytes)

    def open(self, model: str, layers: list[FeatureSet], kept_as: str | None) -> Opened:
        """What all scorers say before anything is learned."""
        meter = Meter(self._job.device, keep_peak=True)
        judged = self._verdicts.recall(kept_as)
        return Opened(
            model=model,
            layers=layers,
            kept_as=kept_as,
            begun=[] if judged is not None else self._begin(layers, kept_as, meter),
            judged=judged,
            phases=meter.samples,
            wall_seconds=meter.wall_seconds,
        )

    def gather(self, opened: Opened) -> list[Opened]:
        """Those that are to be ended now, if any."""
        if all(each.is_over for each in opened.begun):
            return [opened]
        return self._waiting.add(opened, sum(each.num_bytes for each in opened.begun))

    def rest(self) -> list[Opened]:
        """All that still wait."""
        return self._waiting.rest()

    def end(self, some: Sequence[Opened]) -> list[Judgement]:
        """Learn what is left to be learned, of all of them at once; each is said to have taken its share of that."""
        meter = Meter(self._job.device, keep_peak=True)
        with meter.phase("score"):
            scores = iter(finish([begun for each in some for begun in each.begun]))
        shares = tuple(PhaseSamples(phase=spent.phase, seconds=(spent.total / len(some),)) for spent in meter.samples)
        judgements = []
        for each in some:
            judged = each.judged
            if judged is None:
                best, place = best_layer([next(scores) for _ in each.begun], self._job.scorers)
                judged = Judged(scores=best, layer=place, num_features=each.layers[place].features.shape[1])
                self._verdicts.keep(each.kept_as, judged)
            judgements.append(
                Judgement(
                    model=each.model,
                    judged=judged,
                    num_layers=len(each.layers),
                    features=each.layers[judged.layer].features,
                    phases=(*each.phases, *shares),
                    wall_seconds=each.wall_seconds + meter.wall_seconds / len(some),
                    peak_memory_bytes=meter.peak_memory_bytes,
                )
            )
        return judgements

    def _begin(self, layers: Sequence[FeatureSet], kept_as: str | None, meter: Meter) -> list[Begun]:
        prepared = [
            dataclasses.replace(layer, groundwork=self._verdicts.groundwork(kept_as, place))
            for place, layer in enumerate(layers)
        ]
        return begin_layers(
            prepared,
            self._job.scorers,
            seed=self._job.settings.seed,
            timed=lambda name: meter.phase("score"),
            found=lambda place, groundwork: self._verdicts.keep_groundwork(kept_as, place, groundwork),
        )
