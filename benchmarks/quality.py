"""Does the answer name the right network? The truth, and everybody against it.

For each target (quality_targets.py) every candidate (quality_candidates.py) is fine-tuned fully on the target's items: best of
two learning rates, two or more seeds, tested on other items. That is the truth. Beside it stand what `hound search` says of
each (every scorer) and the outcome of every short training that finals might ask for, so that any race can be replayed
from the records without a GPU. Records are lines of JSON; a call that is cut short goes on where it was.

    python benchmarks/quality.py pack                                   # once, where .real is: carried.tar.xz must travel
    python benchmarks/quality.py piles --device cuda --out $OUT --fresh           # small networks, all image targets
    python benchmarks/quality.py make --target fashion-500 --device cuda --processes 12 --out $OUT --seconds 480
    python benchmarks/quality.py judge --json                                  # everybody against the truth, on any machine
"""

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np

from modelhound.analysis.trials import CYCLES, FULL_EPOCHS, RATE_FACTOR, Trial
from modelhound.compat import import_timm
from modelhound.finals.held_items import HeldItems
from modelhound.finals.trial_pool import TrialPool
from modelhound.finals.trials import Classroom, TrialRequest, TrialResult
from modelhound.measuring.costs import search_once
from modelhound.meter import describe_machine, resolve_device, seconds_now
from modelhound.models import find_models
from modelhound.records import ModelMeasured, to_plain, unpack_items
from modelhound.report.charts import save_charts
from modelhound.settings import SCORERS, ModelSettings, RecipeSettings, SearchSettings
from modelhound.training.recipe import choose_rate
from quality_bulk import Family, find_families, find_untold, train_families
from quality_candidates import Candidate, find_candidates
from quality_judging import judge_all
from quality_packing import pack, unpack
from quality_records import (
    EveryTrial,
    Line,
    Notebook,
    outcome_of,
    pack_right,
    read_records,
    trial_line,
    trial_of,
    truth_line,
)
from quality_report import quality_charts, show_table, write_report
from quality_targets import IMAGE_TARGETS, ROOT, TARGETS, TEXT_TARGETS, Target, open_target

RECORDS = ROOT / "benchmarks" / "results" / "quality"
DERIVED = ROOT / "build" / "quality"  # ignored by git, and kept between calls where a machine is kept
_AT_ONCE = 2  # candidates, where they are trained one after the other; a race needs two


class TimeUpError(Exception):
    """The call must end before it is cut off."""


def derive(asked: argparse.Namespace) -> None:
    """Those that `make` would make first, so that it need not."""
    began = seconds_now()
    import_timm()
    unpack()
    DERIVED.mkdir(parents=True, exist_ok=True)
    for name in asked.targets:
        found = find_candidates(open_target(name), DERIVED, resolve_device(asked.device), small=False)
        print(f"{name}: {len(found)} candidates, {seconds_now() - began:.0f} s", flush=True)


def make(asked: argparse.Namespace) -> None:
    """All records of one target, as far as the time lasts."""
    began = seconds_now()
    import_timm()
    unpack()
    device = resolve_device(asked.device)
    target = open_target(asked.target)
    notes = Notebook(asked.target, None if asked.fresh else RECORDS, asked.out)
    DERIVED.mkdir(parents=True, exist_ok=True)
    candidates = find_candidates(target, DERIVED, device, small=asked.small)[: asked.most]
    print(f"{target.name}: {len(candidates)} candidates, {seconds_now() - began:.0f} s", flush=True)
    if not any(notes.find("target")):
        notes.add(_about(target, device))

    last, longest = seconds_now(), 0.0

    def hurry() -> None:
        """Whether there is time for another one that takes as long as the longest so far."""
        nonlocal last, longest
        longest, last = max(longest, seconds_now() - last), seconds_now()
        if last - began + longest > asked.seconds:
            raise TimeUpError

    room = Classroom(target.dataset, target.folds, HeldItems(target.dataset, device))
    try:
        with ThreadPoolExecutor(1) as beside, TrialPool(room, num_processes=asked.processes) as pool:
            scored = beside.submit(_score, target, candidates, device, notes)
            if not asked.processes:
                scored.result()
            # a few at a time, so that what a call leaves behind are whole candidates
            at_once = len(candidates) if asked.processes else _AT_ONCE
            for start in range(0, len(candidates), at_once):
                some = candidates[start : start + at_once]
                truths = _truths(target, some, device, notes, num_seeds=asked.seeds)
                _train(target, some, device, pool, notes, truths, hurry)
                print(f"{start + len(some)} candidates: {seconds_now() - began:.0f} s", flush=True)
            scored.result()
        print(f"{target.name}: complete", flush=True)
    except TimeUpError:
        print(f"time is up after {seconds_now() - began:.0f} s: run it again to go on", flush=True)


def make_piles(asked: argparse.Namespace) -> None:
    """All records of the small networks on every image target, as far as the time lasts."""
    began = seconds_now()
    import_timm()
    device = resolve_device(asked.device)
    notebooks, families, scoring = dict[str, Notebook](), list[Family](), list[Callable[[], None]]()
    for name in asked.targets or IMAGE_TARGETS:
        target = open_target(name)
        notes = notebooks[name] = Notebook(name, None if asked.fresh else RECORDS, asked.out)
        candidates = find_candidates(target, DERIVED, device, small=True)[: asked.most]
        if not any(notes.find("target")):
            notes.add(_about(target, device))
        scoring.append(partial(_score, target, candidates, device, notes))
        families += find_families(target, candidates, device, notes, num_seeds=asked.seeds)
        print(f"{name}: {len(candidates)} candidates, {seconds_now() - began:.0f} s", flush=True)

    def score_all() -> None:
        for score in scoring:
            score()
        print(f"scores: {seconds_now() - began:.0f} s", flush=True)

    left = asked.seconds - (seconds_now() - began)
    if train_families(families, notebooks, score_all, num_processes=asked.processes, seconds=left):
        print(f"complete after {seconds_now() - began:.0f} s", flush=True)
    else:
        print(f"time is up after {seconds_now() - began:.0f} s: run it again to go on", flush=True)


def _about(target: Target, device: str) -> Line:
    learned = target.learned
    machine = to_plain(describe_machine())
    machine.pop("hostname", None)
    return {
        "kind": "target",
        "target": target.name,
        "about": target.about,
        "modality": learned.modality,
        "counts": np.bincount(learned.targets).tolist(),
        "labels": learned.targets.tolist(),
        "folds": target.folds[target.folds >= 0].tolist(),
        "num_tested": int((target.folds < 0).sum()),
        "full_epochs": FULL_EPOCHS,
        "cycles": list(CYCLES),
        "device": device,
        "machine": machine,
    }


def _score(target: Target, candidates: Sequence[Candidate], device: str, notes: Notebook) -> None:
    """What a search says of every candidate, by every scorer."""
    known = {line["name"] for line in notes.find("scores")}
    scorers = tuple(name for name in SCORERS if name != "leep")
    for weights in ("pretrained", "random"):
        chosen = {
            each.model: each for each in candidates if each.settings.weights == weights and each.name not in known
        }
        if not chosen:
            continue
        settings = SearchSettings(
            target.dataset.name,
            models=tuple(chosen),
            weights=weights,  # type: ignore[arg-type]
            scorers=scorers,
            exhaustive=True,
            fresh=True,
            tokens=target.tokens,
            device=device,
        )
        began = seconds_now()
        found = search_once(find_models(list(chosen)), target.learned, settings, device=device)
        records = [record for record in found if isinstance(record, ModelMeasured)]  # plans and timelines aside
        seconds = seconds_now() - began
        for record in records:
            notes.add(
                {
                    "kind": "scores",
                    "name": chosen[record.model].name,
                    "num_parameters": record.num_parameters,
                    "published": chosen[record.model].published,
                    "scores": {name: round(value, 6) for name, value in record.scores.items()},
                    "right": pack_right(unpack_items(record.item_scores["ridge"])),
                    "seconds": round(seconds / len(records), 4),
                }
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    """One training, and where its result goes."""

    request: TrialRequest
    keep: Callable[[TrialResult], None]


def _train(
    target: Target,
    candidates: Sequence[Candidate],
    device: str,
    pool: TrialPool,
    notes: Notebook,
    truths: list[_Job],
    hurry: Callable[[], None],
) -> None:
    """Every trial that any race might ask for, rung after rung.

    Full trainings are the longest: some begin with every rung, so that nobody waits for the last of its trials.
    """
    by_name = {each.name: each for each in candidates}
    every = EveryTrial(list(by_name), target.dataset.modality)
    for line in notes.find("trial"):
        if line["name"] in by_name:
            every.tell(trial_of(line), outcome_of(line))

    def keep(trial: Trial, result: TrialResult) -> None:
        line = trial_line(trial, result)
        notes.add(line)
        every.tell(trial, outcome_of(line))

    share = -(-len(truths) // (len(CYCLES) + 2))
    while (trials := every.next_trials()) or truths:
        hurry()
        jobs, truths = (truths[:share], truths[share:]) if trials else (truths, [])
        jobs += [_Job(_request(by_name[trial.model], trial, target, device), partial(keep, trial)) for trial in trials]

        def done(place: int, result: TrialResult, jobs: list[_Job] = jobs) -> None:
            jobs[place].keep(result)
            hurry()

        pool.run([job.request for job in jobs], done)


def _request(candidate: Candidate, trial: Trial, target: Target, device: str) -> TrialRequest:
    folder = DERIVED / "trials" / target.name / candidate.name / f"{trial.notch}-{trial.fold}"
    return TrialRequest(
        model=candidate.model,
        model_settings=_with_tokens(candidate, target),
        rate=_rate(target, trial.notch),
        fold=trial.fold,
        cycles=CYCLES[: trial.stage + 1],
        device=device,
        seed=0,
        folder=str(folder),
    )


def _truths(
    target: Target, candidates: Sequence[Candidate], device: str, notes: Notebook, *, num_seeds: int
) -> list[_Job]:
    """Full fine-tuning of every candidate, at every rate, with every seed; what is not recorded yet."""

    def keep(candidate: Candidate, notch: int, seed: int, result: TrialResult) -> None:
        notes.add(truth_line(candidate.name, notch, seed, result))

    return [
        _Job(
            TrialRequest(
                model=each.model,
                model_settings=_with_tokens(each, target),
                rate=_rate(target, notch),
                fold=-1,
                cycles=(FULL_EPOCHS,),
                device=device,
                seed=seed,
            ),
            partial(keep, each, notch, seed),
        )
        for each, notch, seed in find_untold(candidates, notes, num_seeds=num_seeds)
    ]


def _with_tokens(candidate: Candidate, target: Target) -> ModelSettings:
    return dataclasses.replace(candidate.settings, tokens=target.tokens)


def _rate(target: Target, notch: int) -> float:
    return choose_rate(RecipeSettings(), target.dataset.modality) * RATE_FACTOR**notch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    commands.add_parser("pack", help="what must travel to a machine without internet")
    deriving = commands.add_parser("derive", help="the derivatives of real networks, beside something else")
    deriving.add_argument("targets", nargs="+", choices=TARGETS)
    deriving.add_argument("--device", default="auto")
    making = commands.add_parser("make", help="the records of one target")
    making.add_argument("--target", required=True, choices=[*IMAGE_TARGETS, *TEXT_TARGETS])
    making.add_argument("--device", default="auto")
    making.add_argument("--processes", type=int, default=0, help="trials at once, each in a process of its own")
    making.add_argument("--seeds", type=int, default=2, help="of the truth; more may be added by a later call")
    making.add_argument("--out", type=Path, default=RECORDS)
    making.add_argument("--seconds", type=float, default=480.0, help="end in time, and go on in the next call")
    making.add_argument("--small", action="store_true", help="embedded and random networks only")
    making.add_argument("--most", type=int, help="so many candidates, those that are trained fastest first")
    making.add_argument("--fresh", action="store_true", help="forget what is recorded, as another machine should")
    piling = commands.add_parser(
        "piles", help="the records of all small networks on image targets, many trained as one"
    )
    piling.add_argument("--targets", nargs="*", choices=IMAGE_TARGETS)
    piling.add_argument("--device", default="auto")
    piling.add_argument("--processes", type=int, default=12)
    piling.add_argument("--seeds", type=int, default=2, help="of the truth; more may be added by a later call")
    piling.add_argument("--out", type=Path, default=RECORDS)
    piling.add_argument("--seconds", type=float, default=480.0, help="end in time, and go on in the next call")
    piling.add_argument("--most", type=int, help="so many candidates, those that are trained fastest first")
    piling.add_argument("--fresh", action="store_true", help="forget what is recorded, as another machine should")
    judging = commands.add_parser("judge", help="everybody against the truth")
    judging.add_argument("--records", type=Path, default=RECORDS)
    judging.add_argument("--json", action="store_true")
    judging.add_argument("--report", type=Path, help="write tables and laws here, as Markdown")
    judging.add_argument("--charts", type=Path, help="draw charts into this folder")
    asked = parser.parse_args()
    if asked.command == "pack":
        pack()
    elif asked.command == "derive":
        derive(asked)
    elif asked.command == "make":
        make(asked)
    elif asked.command == "piles":
        make_piles(asked)
    else:
        judged = judge_all(read_records(asked.records, tuple(TARGETS)))
        if asked.report:
            asked.report.write_text(write_report(judged))
        if asked.charts:
            save_charts(quality_charts(judged), asked.charts, ("png",))
        print(json.dumps(judged, indent=1) if asked.json else show_table(judged))


if __name__ == "__main__":
    main()
