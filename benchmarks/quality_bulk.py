"""All small networks on all image targets in one call: piles of trainings (quality_stacked.py), shared out to processes.

In:  targets, a device, how many processes
Out: the same lines that quality.py writes one by one
Nothing here knows how a pile is trained. One job is everything that one family of alike networks needs on one target: every
trial that finals might ask for, and full fine-tuning at every rate with every seed.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from modelhound.analysis.trials import CYCLES, FULL_EPOCHS, NUM_FOLDS, RATE_FACTOR, Trial
from modelhound.compat import import_timm
from modelhound.finals.held_items import HeldItems
from modelhound.finals.trials import Classroom, TrialRequest
from modelhound.meter import seconds_now
from modelhound.settings import RecipeSettings
from modelhound.training.recipe import choose_rate
from quality_candidates import Candidate
from quality_records import EveryTrial, Line, Notebook, outcome_of, trial_line, trial_of, truth_line
from quality_stacked import run_stacked, shape_of
from quality_targets import Target, open_target

__all__ = ["Family", "find_families", "find_untold", "train_families"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Networks that are alike, and what is not known of them yet on one target."""

    target: str
    members: tuple[Candidate, ...]
    device: str
    known: tuple[Line, ...]
    """What is recorded of trials."""
    needs_trials: bool
    untold: tuple[tuple[Candidate, int, int], ...]
    """Full trainings that are missing: of whom, at which rate, with which seed."""

    @property
    def size(self) -> int:
        """The more, the earlier it should begin."""
        return len(self.members)


def find_families(
    target: Target, candidates: Sequence[Candidate], device: str, notes: Notebook, *, num_seeds: int
) -> Iterator[Family]:
    """Those with something left to do."""
    untold = find_untold(candidates, notes, num_seeds=num_seeds)
    room = Classroom(target.dataset, target.folds, HeldItems(target.dataset, "cpu"))
    families: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        families.setdefault(shape_of(_request(candidate, "cpu", fold=0), room), []).append(candidate)
    for members in families.values():
        names = [each.name for each in members]
        known = tuple(line for line in notes.find("trial") if line["name"] in names)
        family = Family(
            target=target.name,
            members=tuple(members),
            device=device,
            known=known,
            needs_trials=bool(_recall(names, known).next_trials()),
            untold=tuple(each for each in untold if each[0].name in names),
        )
        if family.needs_trials or family.untold:
            yield family


def find_untold(
    candidates: Sequence[Candidate], notes: Notebook, *, num_seeds: int
) -> tuple[tuple[Candidate, int, int], ...]:
    """The full trainings that are not recorded yet: of whom, at which rate, with which seed."""
    trained = {(line["name"], line["notch"], line["seed"]) for line in notes.find("truth")}
    return tuple(
        (each, notch, seed)
        for each in candidates
        for notch in each.notches
        for seed in range(num_seeds)
        if (each.name, notch, seed) not in trained
    )


def train_families(
    families: Sequence[Family],
    notebooks: dict[str, Notebook],
    meanwhile: Callable[[], None],
    *,
    num_processes: int,
    seconds: float,
) -> bool:
    """Into the notebooks, as they come; whether all came before the time was up. `meanwhile` is done beside it."""
    began, left = seconds_now(), len(families)
    targets = list(notebooks)  # one after the other, so that a call that is cut short leaves whole ones
    ordered = sorted(families, key=lambda family: (targets.index(family.target), -family.size))
    with multiprocessing.get_context("spawn").Pool(num_processes, initializer=_begin) as pool:
        results = pool.imap_unordered(_train, ordered)
        meanwhile()
        while left:
            try:
                target, lines, took = results.next(timeout=max(0.1, seconds - (seconds_now() - began)))
            except multiprocessing.TimeoutError:
                return False
            for line in lines:
                notebooks[target].add(line)
            left -= 1
            names = sorted({line["name"] for line in lines})
            print(
                f"{seconds_now() - began:.0f} s: {target}, {', '.join(names)} in {took:.0f} s, {left} left", flush=True
            )
    return True


_rooms: dict[str, tuple[Target, Classroom]] = {}


def _begin() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    import_timm()


def _train(family: Family) -> tuple[str, list[Line], float]:
    began = seconds_now()
    if family.target not in _rooms:
        target = open_target(family.target)
        _rooms[family.target] = (
            target,
            Classroom(
                target.dataset, target.folds, HeldItems(target.dataset, family.device, most_bytes=4 << 30, workers=0)
            ),
        )
    _, room = _rooms[family.target]
    lines: list[Line] = []
    if family.needs_trials:
        lines += _run_trials(family, room)
    if family.untold:
        lines += _find_truth(family, room)
    return family.target, lines, seconds_now() - began


def _recall(names: Sequence[str], known: Sequence[Line]) -> EveryTrial:
    every = EveryTrial(names, "image")
    for line in known:
        every.tell(trial_of(line), outcome_of(line))
    return every


def _run_trials(family: Family, room: Classroom) -> Iterator[Line]:
    """Rates on the first fold as a race chooses them, then all folds and stages at each member's rate; what is not known."""
    by_name = {each.name: each for each in family.members}
    every = _recall(list(by_name), family.known)
    known = {trial_of(line) for line in family.known}
    while (trials := every.next_trials()) and all(trial.fold == trial.stage == 0 for trial in trials):
        requests = [_request(by_name[trial.model], family.device, fold=0, notch=trial.notch) for trial in trials]
        for trial, results in zip(trials, run_stacked(requests, room), strict=True):
            line = trial_line(trial, results[0])
            every.tell(trial, outcome_of(line))
            known.add(trial)
            yield line
    wanted = [
        [Trial(model=name, notch=every.chosen_notch(name), fold=fold, stage=stage) for stage in range(len(CYCLES))]
        for name in by_name
        for fold in range(NUM_FOLDS)
    ]
    wanted = [stages for stages in wanted if not known.issuperset(stages)]
    if not wanted:
        return
    requests = [
        _request(by_name[first.model], family.device, fold=first.fold, notch=first.notch, cycles=CYCLES)
        for first, *_ in wanted
    ]
    for stages, results in zip(wanted, run_stacked(requests, room), strict=True):
        for trial, result in zip(stages, results, strict=True):
            if trial not in known:
                yield trial_line(trial, result)


def _find_truth(family: Family, room: Classroom) -> Iterator[Line]:
    requests = [
        _request(each, family.device, fold=-1, notch=notch, cycles=(FULL_EPOCHS,), seed=seed)
        for each, notch, seed in family.untold
    ]
    for (each, notch, seed), (result,) in zip(family.untold, run_stacked(requests, room), strict=True):
        yield truth_line(each.name, notch, seed, result)


def _request(
    candidate: Candidate,
    device: str,
    *,
    fold: int,
    notch: int = 0,
    cycles: tuple[int, ...] = CYCLES[:1],
    seed: int = 0,
) -> TrialRequest:
    return TrialRequest(
        model=candidate.model,
        model_settings=candidate.settings,
        rate=choose_rate(RecipeSettings(), "image") * RATE_FACTOR**notch,
        fold=fold,
        cycles=cycles,
        device=device,
        seed=seed,
    )
