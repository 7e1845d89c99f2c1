"""What finals are asked to do, and how one of their trials is asked for and written down.

In:  the finalists of a search, its data set and settings
Out: a TrialRequest for a trial, a TrialDone for what came of it; where its checkpoints lie
Nothing here runs or decides anything.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelhound.analysis.trials import CYCLES, RATE_FACTOR, Trial
from modelhound.data import Dataset
from modelhound.finals.trials import TrialRequest, TrialResult
from modelhound.records import Failure, FinalsCosts, ModelMeasured, TrialDone, Watch, silent
from modelhound.settings import RecipeSettings, SearchSettings
from modelhound.training.checkpoints import name_folder
from modelhound.training.recipe import choose_rate

__all__ = ["FinalsJob", "num_epochs", "trial_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalsJob:
    """What to race, and whom to tell."""

    finalists: Sequence[ModelMeasured]
    """Best first."""
    scorer: str
    """The one that made them finalists."""
    num_candidates: int
    """How many models were searched: what fine-tuning all of them would take is the measure of the budget."""
    dataset: Dataset
    settings: SearchSettings
    device: str
    folder: Path
    """Of the run; checkpoints lie below."""
    known: Sequence[TrialDone | FinalsCosts]
    """What earlier starts have found out."""
    tell: Callable[[TrialDone | FinalsCosts | Failure], None]
    watch: Watch = silent

    @property
    def stamps(self) -> Mapping[str, str]:
        """By model; they change with its weights."""
        return {each.model: each.stamp for each in self.finalists}

    def rate(self, notch: int) -> float:
        """The learning rate that a notch stands for."""
        return choose_rate(RecipeSettings(), self.dataset.modality) * RATE_FACTOR**notch

    def checkpoints(self, model: str, trial: Trial | None = None) -> Path:
        """Of a finalist, or of one of its trials; they may not be there."""
        folder = self.folder / "finals" / name_folder(model, self.stamps)
        return folder if trial is None else folder / f"rate{trial.notch:+d}-fold{trial.fold}"

    def request(self, trial: Trial, *, expected_seconds: float = 0.0, probe: bool = False) -> TrialRequest:
        """What to ask for."""
        return TrialRequest(
            model=trial.model,
            stamp=self.stamps[trial.model],
            model_settings=self.settings.model_settings(),
            rate=self.rate(trial.notch),
            fold=trial.fold,
            cycles=CYCLES[: trial.stage + 1],
            device=self.device,
            seed=self.settings.seed,
            precision=self.settings.precision,
            folder=None if probe else str(self.checkpoints(trial.model, trial)),
            probe=probe,
            expected_seconds=expected_seconds,
        )

    def record(self, trial: Trial, result: TrialResult, *, waited_seconds: float, at_once: int) -> TrialDone:
        """What to write down."""
        return TrialDone(
            model=trial.model,
            stamp=self.stamps[trial.model],
            notch=trial.notch,
            rate=self.rate(trial.notch),
            fold=trial.fold,
            stage=trial.stage,
            epochs=num_epochs(trial.stage),
            num_steps=result.num_steps,
            item_scores=result.item_scores,
            loss=result.loss,
            seconds=result.seconds,
            waited_seconds=waited_seconds,
            at_once=at_once,
            error=result.error,
            try_again=result.try_again,
        )


def num_epochs(stage: int) -> int:
    """Behind a trial in all, earlier stages included."""
    return sum(CYCLES[: stage + 1])


def trial_of(record: TrialDone) -> Trial:
    """Which one was written down."""
    return Trial(model=record.model, notch=record.notch, fold=record.fold, stage=record.stage)
