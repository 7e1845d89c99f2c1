"""What a worker of a cluster does: its share of the models, by the same engine as on one machine.

In:  what all workers have in common, and the models of one parcel
Out: sent as soon as it is there: what models are made of; how they stand after a rung; records of those that came to the end
Nothing here knows other workers or who has lost. A parcel is begun from nothing: rungs that were run before come from the
feature store, or are run again where this machine has not seen them. So it does not matter who had the model before.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.racing import Evidence
from modelhound.compat import free_at_once, import_timm, keep_freed_memory
from modelhound.data import Dataset, InputForm
from modelhound.features.engine import Rows
from modelhound.features.many import Session
from modelhound.measuring.deciding import open_session
from modelhound.measuring.race import Race
from modelhound.measuring.scoring import Job, tested_only
from modelhound.models import ModelRef
from modelhound.plan import Chain, Costs
from modelhound.records import Failure, ModelMeasured, unpack_items
from modelhound.settings import SearchSettings, decisive_scorer

__all__ = ["Common", "Final", "RungRequest", "Sight", "Standing", "Surveyed", "Warned", "run_share", "survey_share"]

Send = Callable[[Any], None]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Common:
    """What every worker needs to know."""

    dataset: Dataset
    settings: SearchSettings
    scorers: tuple[str, ...]
    device: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Surveyed:
    """One model, as planning sees it."""

    model: str
    chain: Chain | None
    """None where all its features are remembered on that machine."""
    form: InputForm | None
    costs: Costs | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RungRequest:
    """Run these models up to and with one rung."""

    models: Mapping[ModelRef, str]
    sizes: tuple[int, ...]
    order: Sequence[int]
    rung: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Standing:
    """How a model stands after a rung that is not the last."""

    model: str
    evidence: Evidence
    num_parameters: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Final:
    """A model that came to the end."""

    record: ModelMeasured
    item_scores: NDArray[np.float64]
    """Of the decisive scorer."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sight:
    """The features of the best model of a parcel."""

    model: str
    features: NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """What a person should know of the whole run."""

    warning: str


def survey_share(common: Common, models: Mapping[ModelRef, str], send: Send) -> None:
    """Take models apart, and send what they are made of."""
    job = _job(common, models, send)
    race = Race(job)
    with open_session(job) as session:
        session.survey(models, failed=race.lose, shortcut="leep" not in job.scorers)
        costs = session.planner.costs(tuple(session.specimens)) if session.specimens else None
        for model, specimen in session.specimens.items():
            send(Surveyed(model=model, chain=session.planner.chain(model), form=specimen.form, costs=costs))
        for model in session.known:
            send(Surveyed(model=model, chain=None, form=None, costs=None))
    race.close()


def run_share(common: Common, request: RungRequest, send: Send) -> None:
    """Run models over the items of all rungs so far; what earlier ones gave is taken from where it was kept."""
    sights: dict[str, NDArray[np.float32]] = {}

    def see(model: str, features: np.ndarray) -> None:
        sights.clear()
        sights[model] = features

    job = _job(common, request.models, send, see)
    race = _PartOfRace(job, send)
    with open_session(job) as session:
        session.survey(request.models, failed=race.lose, shortcut="leep" not in job.scorers)
        race.begin(session, request)
        for rung, items in enumerate(race.rungs()[: request.rung + 1]):
            race.tells = rung == request.rung
            session.run(tuple(race.running), items, race.order, done=race.take_and_keep, failed=race.lose)
        if session.trouble is not None:
            send(Warned(warning=session.trouble))
    race.close()
    for model, features in sights.items():
        send(Sight(model=model, features=features))


class _PartOfRace(Race):
    """Tells how models stand instead of judging them: who has lost is decided where all are known."""

    def __init__(self, job: Job, send: Send) -> None:
        super().__init__(job)
        self._send = send
        self.tells = False
        """Whether this is the rung that was asked for, and not one before it."""

    def begin(self, session: Session, request: RungRequest) -> None:
        self._sizes, self.order = request.sizes, request.order
        self._enter(session)

    def take_and_keep(self, model: str, rows: Rows, keep: Callable[[], None]) -> None:
        keep()  # first: a worker that dies while it scores has not run the network in vain
        self.take(model, rows)
        standing = self._standings.pop(model, None)
        if standing is not None and self.tells:
            self._send(
                Standing(
                    model=model,
                    evidence=standing,
                    num_parameters=self._num_parameters(model),
                    seconds=sum(self._seconds[model].values()),
                )
            )


def _job(
    common: Common,
    models: Mapping[ModelRef, str],
    send: Send,
    see: Callable[[str, np.ndarray], None] = lambda model, features: None,
) -> Job:
    import_timm()
    if common.device == "cpu":  # as on one machine
        keep_freed_memory() if common.settings.memory is None else free_at_once()
    decisive = decisive_scorer(common.scorers)

    def tell(record: Failure | ModelMeasured | object) -> None:
        if isinstance(record, ModelMeasured):
            send(Final(record=record, item_scores=tested_only(unpack_items(record.item_scores[decisive]))))
        elif isinstance(record, Failure):  # plans and timelines of one share say little
            send(record)

    return Job(
        models=models,
        # what lies in memory that others look at cannot be written, which torch warns of
        dataset=dataclasses.replace(common.dataset, targets=common.dataset.targets.copy()),
        settings=common.settings,
        scorers=common.scorers,
        device=common.device,
        tell=tell,
        warn=lambda warning: send(Warned(warning=warning)),
        show=see,
    )
