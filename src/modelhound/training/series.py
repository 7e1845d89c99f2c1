"""Every model on every number of ranks: train what is not trained yet, and put on record what came of it.

In:  an open run folder, TrainSettings, training and test items
Out: records in the folder; what is known of the runs asked for
A single rank runs in this process; a series runs in processes of its own, the run on one rank too, or it would be compared with
something else. Nothing here concludes.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.data import Dataset
from modelhound.errors import HoundError, RequestError, StoreError
from modelhound.launch import Cluster, run_on_ranks
from modelhound.meter import count_cores, seconds_now
from modelhound.models import ModelRef, source_of
from modelhound.records import Failure, ModelTrained, RankTrained, Watch, to_plain
from modelhound.settings import TrainSettings
from modelhound.store import RunFolder
from modelhound.training.rank import RankRequest, RankResult, train_here

__all__ = ["Series", "latest"]


class Series:
    """The runs of one request: every model on every number of ranks."""

    def __init__(
        self,
        run: RunFolder,
        settings: TrainSettings,
        dataset: Dataset,
        test: Dataset,
        device: str,
        cluster: Cluster,
        prefetch: int,
        watch: Watch,
    ) -> None:
        self._run, self._settings, self._device, self._cluster, self._watch = run, settings, device, cluster, watch
        self._dataset, self._test, self._prefetch = dataset, test, prefetch
        self._wanted: list[tuple[str, int, str]] = []
        self.failures: list[Failure] = []
        self.num_resumed = 0

    def do(self, model: ModelRef, num_ranks: int) -> None:
        """Train unless that is done; what fails is recorded, and the others go on."""
        try:
            stamp = source_of(model).stamp(model.name)
            self._wanted.append((str(model), num_ranks, stamp))
            if self._is_done(str(model), num_ranks, stamp):
                self.num_resumed += 1
                return
            self._train(model, num_ranks, stamp)
        except (RequestError, StoreError):  # nothing else would go better
            raise
        except Exception as error:  # whatever a stranger's network raises, the others go on
            failure = Failure(model=str(model), phase=_phase(num_ranks), error=_explain(error))
            self._run.append(failure)
            self.failures.append(failure)

    def finished(self) -> tuple[list[ModelTrained], list[RankTrained]]:
        """What is known of the runs asked for, in the order asked for, with the records of their ranks."""
        runs = {(each.model, each.num_ranks, each.stamp): each for each in self._run.read(ModelTrained)}
        trained = [runs[key] for key in self._wanted if key in runs]
        return trained, latest(self._run.read(RankTrained), trained)

    def _is_done(self, model: str, num_ranks: int, stamp: str) -> bool:
        return any(
            (each.model, each.num_ranks, each.stamp) == (model, num_ranks, stamp)
            for each in self._run.read(ModelTrained)
        )

    def _train(self, model: ModelRef, num_ranks: int, stamp: str) -> None:
        settings = self._settings
        folder = self._run.path / _folder_name(str(model), num_ranks)
        request = RankRequest(
            model=str(model),
            stamp=stamp,
            recipe=settings.recipe(),
            model_settings=settings.model_settings(),
            device=self._device,
            folder=str(folder),
            prefetch=self._prefetch,
            verdict=settings.verdict,
            trace=settings.trace,
        )
        started = seconds_now()
        if settings.num_ranks() == (1,):
            results = [train_here(request, self._dataset, self._test, watch=self._watch)]
        else:
            values = self._launch(request, folder, num_ranks)
            results = msgspec.convert(values, list[RankResult])
        for result in results:
            self._run.append(result.rank)
            if result.blocks is not None and result is results[0]:
                self._run.append(result.blocks)
            if result.operators is not None:
                trace = str(folder.relative_to(self._run.path) / Path(result.operators.trace).name)
                self._run.append(msgspec.structs.replace(result.operators, trace=trace))
        trained = results[0].trained
        checkpoint = Path(trained.checkpoint)
        self._run.append(
            msgspec.structs.replace(
                trained,
                checkpoint=str(checkpoint.relative_to(self._run.path)),
                wall_seconds=seconds_now() - started,
            )
        )

    def _launch(self, request: RankRequest, folder: Path, num_ranks: int) -> list[Any]:
        """On ranks of their own, even if it is only one: a series is compared with itself."""
        ranks = folder / "ranks"
        ranks.mkdir(parents=True, exist_ok=True)
        items = ranks / "items.pickle"
        items.write_bytes(pickle.dumps((self._dataset, self._test)))
        absolute = msgspec.structs.replace(request, items=str(items.resolve()), folder=str(folder.resolve()))
        threads = max(1, count_cores() // max(self._settings.num_ranks()))
        try:
            values = run_on_ranks(
                "modelhound.training.rank:train_rank",
                {"request": to_plain(absolute), "progress": str(ranks.resolve())},
                num_ranks=num_ranks,
                folder=ranks.resolve(),
                device=self._device,
                environment={"OMP_NUM_THREADS": str(threads)},
                cluster=self._cluster,
                watch=self._watch,
            )
        finally:
            items.unlink(missing_ok=True)
        for value in values:
            value["trained"]["checkpoint"] = str(folder / "checkpoints" / Path(value["trained"]["checkpoint"]).name)
        return values


def latest(records: Sequence[Any], trained: Sequence[ModelTrained]) -> list[Any]:
    """The newest record of each run and rank that is asked for; a run that was started twice has older ones."""
    newest = {(each.model, each.num_ranks, getattr(each, "rank", 0)): each for each in records}
    wanted = {(run.model, run.num_ranks) for run in trained}
    return [each for (model, num_ranks, _), each in newest.items() if (model, num_ranks) in wanted]


def _phase(num_ranks: int) -> str:
    return "training" if num_ranks == 1 else f"training on {num_ranks} ranks"


def _explain(error: Exception) -> str:
    """In one line: our own errors speak for themselves, of others the first line says what it was."""
    if isinstance(error, HoundError):
        return " ".join(str(error).split())
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return f"cannot train it: {type(error).__name__}: {first}"


def _folder_name(model: str, num_ranks: int) -> str:
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in model)
    return f"{kept.strip('-.')}-on-{num_ranks}"
