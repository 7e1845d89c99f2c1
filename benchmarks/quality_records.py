"""The lines that quality.py writes and reads: what is known of one target.

In:  what came of trials, full trainings and scorers
Out: lines of JSON, appended; the same lines as outcomes
Nothing here trains or judges. Right and wrong answers are kept, a bit for each item, so that any race can be replayed.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.trials import CYCLES, FULL_EPOCHS, NUM_FOLDS, Outcome, Trial
from modelhound.finals.trials import TrialResult
from modelhound.records import unpack_items

__all__ = [
    "EveryTrial",
    "Floats",
    "Line",
    "Notebook",
    "Records",
    "outcome_of",
    "pack_right",
    "read_records",
    "trial_line",
    "trial_of",
    "truth_line",
]

Line = dict[str, Any]
Floats = NDArray[np.float64]
_HIGHEST_NOTCH = 2
_LEAST_CANDIDATES = 8  # that were tried for more than the first stage and trained to the end


class Notebook:
    """The records of one target: what is known, and where new lines go."""

    def __init__(self, target: str, known: Path | None, out: Path) -> None:
        """What lies in `known` is copied to `out` first."""
        self.path = out / f"{target}.jsonl"
        out.mkdir(parents=True, exist_ok=True)
        earlier = None if known is None else known / f"{target}.jsonl"
        if earlier is not None and earlier.is_file() and earlier.resolve() != self.path.resolve():
            self.path.write_bytes(earlier.read_bytes())
        self.lines: list[Line] = [json.loads(line) for line in self.path.open()] if self.path.is_file() else []

    def add(self, line: Line) -> None:
        self.lines.append(line)
        with self.path.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def find(self, kind: str) -> Iterator[Line]:
        return (line for line in self.lines if line["kind"] == kind)


def trial_line(trial: Trial, result: TrialResult) -> Line:
    """What came of a short training."""
    return {
        "kind": "trial",
        "name": trial.model,
        "notch": trial.notch,
        "fold": trial.fold,
        "stage": trial.stage,
        "right": pack_right(unpack_items(result.item_scores)) if result.item_scores else "",
        "loss": round(result.loss, 5),
        "seconds": round(result.seconds, 3),
        "error": result.error,
    }


def truth_line(name: str, notch: int, seed: int, result: TrialResult) -> Line:
    """What came of full fine-tuning; which items were right is not kept."""
    score = float(unpack_items(result.item_scores).mean()) if result.item_scores and not result.error else None
    return {
        "kind": "truth",
        "name": name,
        "notch": notch,
        "seed": seed,
        "score": score if score is None else round(score, 6),
        "seconds": round(result.seconds, 3),
        "error": result.error,
    }


def trial_of(line: Mapping[str, Any]) -> Trial:
    """Which trial a line is of."""
    return Trial(model=line["name"], notch=line["notch"], fold=line["fold"], stage=line["stage"])


def outcome_of(line: Mapping[str, Any]) -> Outcome | None:
    """What a trial's line says; None where it failed."""
    if line["error"]:
        return None
    count, packed = line["right"]
    right = np.unpackbits(np.frombuffer(base64.b85decode(packed), dtype=np.uint8))[:count]
    return Outcome(item_scores=right.astype(np.float64), loss=line["loss"], seconds=line["seconds"])


class EveryTrial:
    """Every trial that finals might ask for, and more: three rates on one fold, the best of them on all folds at all stages.

    Ask for the `next_trials`, tell what came of them, until there are none.
    """

    def __init__(self, names: Sequence[str], modality: str) -> None:
        self._names = tuple(names)
        self._low, self._high = (1, 2) if modality == "image" else (0, 1)
        self._outcomes: dict[Trial, Outcome | None] = {}

    def tell(self, trial: Trial, outcome: Outcome | None) -> None:
        self._outcomes[trial] = outcome

    def next_trials(self) -> tuple[Trial, ...]:
        """As many as can be run at once."""
        rungs: list[Callable[[str], list[Trial]]] = [
            lambda name: [_at(name, self._low), _at(name, self._high)],
            lambda name: [_at(name, self._third(name))],
            *(partial(self._all_folds, stage=stage) for stage in range(len(CYCLES))),
        ]
        for rung in rungs:
            missing = [trial for name in self._names for trial in rung(name) if trial not in self._outcomes]
            if missing:
                return tuple(missing)
        return ()

    def chosen_notch(self, name: str) -> int:
        """The best rate on the first fold after the first stage."""
        return self._best(name, (self._low, self._high, self._third(name)))

    def _third(self, name: str) -> int:
        """Above or below the better of two; none above the highest."""
        is_high = self._best(name, (self._low, self._high)) == self._high and self._outcomes[_at(name, self._high)]
        return min(self._high + 1, _HIGHEST_NOTCH) if is_high else self._low - 1

    def _all_folds(self, name: str, stage: int) -> list[Trial]:
        notch = self.chosen_notch(name)
        return [Trial(model=name, notch=notch, fold=fold, stage=stage) for fold in range(NUM_FOLDS)]

    def _best(self, name: str, notches: Sequence[int]) -> int:
        known = {notch: self._outcomes.get(_at(name, notch)) for notch in sorted(notches)}
        good = {notch: each for notch, each in known.items() if each is not None}
        return max(good, key=lambda notch: (good[notch].item_scores.mean(), -good[notch].loss), default=min(known))


def _at(name: str, notch: int) -> Trial:
    return Trial(model=name, notch=notch, fold=0, stage=0)


def pack_right(right: NDArray[Any]) -> list[Any]:
    """Right or wrong, a bit each."""
    return [len(right), base64.b85encode(np.packbits(right > 0.5).tobytes()).decode()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """All that is known of one target."""

    about: dict[str, Any]
    names: tuple[str, ...]
    scores: Mapping[str, Floats]
    num_parameters: Floats
    published: Floats
    """The accuracies that the candidates' makers tell."""
    outcomes: Mapping[Trial, Outcome | None]
    notches: Mapping[str, int]
    """The rate that finals choose for each candidate."""
    truth: Floats
    """Mean over seeds at the best rate."""
    by_seed: Floats
    """[seeds, candidates], at that rate."""
    seed_deviation: float
    """How far two seeds of one candidate at one rate stray from their mean: a standard deviation."""
    epoch_seconds: Floats


def read_records(folder: Path, targets: Sequence[str]) -> list[Records]:
    """The targets whose truth is complete."""
    found = []
    for target in targets:
        path = folder / f"{target}.jsonl"
        if path.is_file():
            records = _understand([json.loads(line) for line in path.open()])
            if records is not None:
                found.append(records)
    return found


def _understand(lines: Sequence[dict[str, Any]]) -> Records | None:
    about = next(line for line in lines if line["kind"] == "target")
    scores = {line["name"]: line for line in lines if line["kind"] == "scores"}
    truth: dict[str, dict[int, dict[int, float]]] = {}
    seconds: dict[str, list[float]] = {}
    for line in lines:
        if line["kind"] == "truth":
            seconds.setdefault(line["name"], []).append(line["seconds"])
            value = 0.0 if line["score"] is None else line["score"]
            truth.setdefault(line["name"], {}).setdefault(line["notch"], {})[line["seed"]] = value
    tried = _tried_to_the_end([trial_of(line) for line in lines if line["kind"] == "trial"])
    outcomes = {trial_of(line): outcome_of(line) for line in lines if line["kind"] == "trial"}
    names = tuple(name for name in scores if name in tried and _is_whole(truth.get(name)))
    if len(names) < _LEAST_CANDIDATES:
        return None
    best = {name: max(truth[name].values(), key=lambda seeds: float(np.mean(list(seeds.values())))) for name in names}
    seeds = sorted(set.intersection(*(set(seeds) for name in names for seeds in truth[name].values())))
    by_seed = np.array([[best[name][seed] for name in names] for seed in seeds])
    shared = [key for key in scores[names[0]]["scores"] if all(key in scores[name]["scores"] for name in names)]
    race = EveryTrial(names, about["modality"])
    for trial, outcome in outcomes.items():
        race.tell(trial, outcome)
    return Records(
        about=about,
        names=names,
        scores={key: np.array([scores[name]["scores"][key] for name in names]) for key in shared},
        num_parameters=np.array([float(scores[name]["num_parameters"]) for name in names]),
        published=np.array([float(scores[name].get("published", 0.0)) for name in names]),
        outcomes=outcomes,
        notches={name: race.chosen_notch(name) for name in names},
        truth=by_seed.mean(axis=0),
        by_seed=by_seed,
        seed_deviation=float(
            np.sqrt(np.mean([np.var([*each.values()], ddof=1) for name in names for each in truth[name].values()]))
        ),
        epoch_seconds=np.array([float(np.median(seconds[name])) / FULL_EPOCHS for name in names]),
    )


def _tried_to_the_end(trials: Sequence[Trial]) -> set[str]:
    """Those whose trials came as far as anybody's, on every fold: a race would wait for the others."""
    last = max((trial.stage for trial in trials), default=0)
    folds: dict[str, set[int]] = {}
    for trial in trials:
        if trial.stage == last:
            folds.setdefault(trial.model, set()).add(trial.fold)
    return {name for name, tested in folds.items() if len(tested) == NUM_FOLDS}


def _is_whole(rates: dict[int, dict[int, float]] | None) -> bool:
    return rates is not None and len(rates) >= 2 and all(len(seeds) >= 2 for seeds in rates.values())
