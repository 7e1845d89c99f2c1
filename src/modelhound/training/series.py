"""Every model on every number of ranks: train what is not trained yet, and put on record what came of it.

In:  an open run folder, TrainSettings, training and test items
Out: records in the folder; what is known of the runs asked for
A single rank runs in this process; a series runs in processes of its own, the run on one rank too, or it would be compared with
something else. Nothing here concludes.
"""

import contextlib
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from modelhound.analysis.newest import newest_of_runs
from modelhound.data import Dataset
from modelhound.errors import HoundError, RequestError, StoreError, explain_error, first_line, is_out_of_memory
from modelhound.launch import Cluster, run_on_ranks
from modelhound.meter import count_cores, seconds_now
from modelhound.models import ModelRef, source_of
from modelhound.records import BlocksMeasured, Failure, ModelTrained, OperatorsProfiled, RankTrained, Watch, to_plain
from modelhound.settings import TrainSettings
from modelhound.store import RunFolder
from modelhound.training.checkpoints import name_folder
from modelhound.training.rank import RankRequest, RankResult, told_by, train_here

__all__ = ["Series"]


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
        stamp = None
        try:
            stamp = source_of(model).stamp(model.name, self._settings.model_settings())
            self._wanted.append((str(model), num_ranks, stamp))
            verdict: str = self._settings.verdict
            trace = self._settings.trace
            self._take_up(str(model), num_ranks, stamp)
            is_trained = self._is_trained(str(model), num_ranks, stamp)
            if is_trained:
                self.num_resumed += 1
                verdict, trace = self._still_asked(str(model), num_ranks)
                if verdict == "none" and not trace:
                    return
            self._train(model, num_ranks, stamp, verdict=verdict, trace=trace, is_trained=is_trained)
        except (RequestError, StoreError):  # nothing else would go better
            raise
        except Exception as error:  # whatever a stranger's network raises, the others go on
            is_trained = stamp is not None and self._is_trained(str(model), num_ranks, stamp)
            failure = Failure(model=str(model), phase=_phase(num_ranks, is_trained), error=_explain(error, is_trained))
            self._run.append(failure)
            self.failures.append(failure)

    def finished(self) -> tuple[list[ModelTrained], list[RankTrained]]:
        """What is known of the runs asked for, in the order asked for, with the records of their ranks."""
        runs = {(each.model, each.num_ranks, each.stamp): each for each in self._run.read(ModelTrained)}
        trained = [runs[key] for key in self._wanted if key in runs]
        return trained, newest_of_runs(self._run.read(RankTrained), trained)

    def _folder(self, model: str, num_ranks: int) -> Path:
        before = [each for each, _, _ in self._wanted]
        return self._run.path / f"{name_folder(model, before)}-on-{num_ranks}"

    def _take_up(self, model: str, num_ranks: int, stamp: str) -> None:
        """Put on record what ranks in processes of their own had trained before they, or the start before, were stopped."""
        folder = self._folder(model, num_ranks)
        files = [folder / "ranks" / told_by(rank) for rank in range(num_ranks)]
        if self._settings.num_ranks() == (1,) or not any(file.exists() for file in files):
            return
        with contextlib.suppress(OSError, msgspec.DecodeError):
            told = [msgspec.json.decode(file.read_bytes(), type=RankResult) for file in files]
            trained = told[0].trained
            if trained.stamp == stamp and not self._is_trained(model, num_ranks, stamp):
                self._keep_trained(told, folder, trained.wall_seconds)
        for file in files:
            file.unlink(missing_ok=True)

    def _is_trained(self, model: str, num_ranks: int, stamp: str) -> bool:
        return any(
            (each.model, each.num_ranks, each.stamp) == (model, num_ranks, stamp)
            for each in self._run.read(ModelTrained)
        )

    def _still_asked(self, model: str, num_ranks: int) -> tuple[str, int]:
        """Which verdict and how long a trace a run that is trained has not got yet."""
        verdict, trace = self._settings.verdict, self._settings.trace
        if self._settings.mode == "cached":
            return "none", 0
        key = (model, num_ranks)
        blocks = [each for each in self._run.read(BlocksMeasured) if (each.model, each.num_ranks) == key]
        traces = [each for each in self._run.read(OperatorsProfiled) if (each.model, each.num_ranks) == key]
        has_doses = any(block.delay_seconds > 0 for each in blocks for block in each.blocks)
        if has_doses or (blocks and verdict == "auto"):
            verdict = "none"
        if any(each.num_steps >= trace for each in traces):
            trace = 0
        return verdict, trace

    def _train(
        self, model: ModelRef, num_ranks: int, stamp: str, *, verdict: str, trace: int, is_trained: bool
    ) -> None:
        """What `is_trained` is on record already: it goes on after its last epoch, to be measured only."""
        settings = self._settings
        folder = self._folder(str(model), num_ranks)
        request = RankRequest(
            model=str(model),
            stamp=stamp,
            recipe=settings.recipe(),
            model_settings=settings.model_settings(),
            device=self._device,
            folder=str(folder),
            prefetch=self._prefetch,
            verdict=verdict,
            trace=trace,
        )
        if settings.num_ranks() == (1,):
            started = seconds_now()

            def keep(result: RankResult) -> None:
                if not is_trained:
                    self._keep_trained([result], folder, seconds_now() - started)

            results = [train_here(request, self._dataset, self._test, tell=keep, watch=self._watch)]
        else:
            results = self._train_on_ranks(request, folder, num_ranks, is_trained=is_trained)
        self._keep_measured(results, folder)

    def _train_on_ranks(
        self, request: RankRequest, folder: Path, num_ranks: int, *, is_trained: bool
    ) -> list[RankResult]:
        started = seconds_now()
        try:
            results = msgspec.convert(self._launch(request, folder, num_ranks), list[RankResult])
        except Exception:
            if not is_trained:  # perhaps it is by now, and only measuring went wrong
                self._take_up(request.model, num_ranks, request.stamp)
            raise
        if not is_trained:
            self._keep_trained(results, folder, seconds_now() - started)
        return results

    def _keep_trained(self, results: Sequence[RankResult], folder: Path, wall_seconds: float) -> None:
        for result in results:
            self._run.append(result.rank)
        trained = results[0].trained
        checkpoint = folder.relative_to(self._run.path) / "checkpoints" / Path(trained.checkpoint).name
        self._run.append(msgspec.structs.replace(trained, checkpoint=str(checkpoint), wall_seconds=wall_seconds))

    def _keep_measured(self, results: Sequence[RankResult], folder: Path) -> None:
        """What bounds it, which the first rank tells, and every rank's trace."""
        if results[0].blocks is not None:
            self._run.append(results[0].blocks)
        for result in results:
            if result.operators is not None:
                trace = str(folder.relative_to(self._run.path) / Path(result.operators.trace).name)
                self._run.append(msgspec.structs.replace(result.operators, trace=trace))

    def _launch(self, request: RankRequest, folder: Path, num_ranks: int) -> list[Any]:
        """On ranks of their own, even if it is only one: a series is compared with itself."""
        ranks = folder / "ranks"
        ranks.mkdir(parents=True, exist_ok=True)
        items = ranks / "items.pickle"
        items.write_bytes(pickle.dumps((self._dataset, self._test)))
        absolute = msgspec.structs.replace(request, items=str(items.resolve()), folder=str(folder.resolve()))
        per_node = max(each // self._cluster.for_ranks(each).num_nodes for each in self._settings.num_ranks())
        threads = max(1, count_cores() // per_node)
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
        return values


def _phase(num_ranks: int, is_trained: bool) -> str:
    if is_trained:
        return "finding what bounds it"
    return "training" if num_ranks == 1 else f"training on {num_ranks} ranks"


def _explain(error: Exception, is_trained: bool) -> str:
    """In one line: our own errors speak for themselves, of others the first line says what it was."""
    if isinstance(error, HoundError):
        return explain_error(error)
    doing = "find what bounds it, though it is trained" if is_trained else "train it"
    reason = f"{type(error).__name__}: {first_line(error)}"
    return f"cannot {doing}: {f'memory ran out ({reason})' if is_out_of_memory(error) else reason}"
