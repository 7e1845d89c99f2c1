"""Everybody against the truth: how well each way of ranking does, what it costs, and whether predictions keep their word.

In:  the records that quality.py made
Out: one table per target and one over all; plain values, ready for JSON
Nothing here trains. Races are replayed from the records by the very code that runs finals.
"""

import base64
import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelhound.analysis.finals import CYCLES, FULL_EPOCHS, NUM_FOLDS, FinalsRace, Outcome, Trial, trial_epochs
from modelhound.analysis.foretelling import Law, Lesson, fit_laws, foretell
from modelhound.analysis.fusion import Pool, fuse, judge_fusion, learn_fusion, weighted_agreement

Floats = NDArray[np.float64]
Way = tuple[Floats, float]  # a number per candidate, and its cost as a share of fine-tuning all
BUDGETS = (0.05, 0.10, 0.15, 0.25)
FINALISTS = {0.05: 4, 0.10: 6, 0.15: 8, 0.25: 12}


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """All that is known of one target."""

    about: dict[str, Any]
    names: tuple[str, ...]
    scores: Mapping[str, Floats]
    num_parameters: Floats
    published: Floats
    """The accuracies that the candidates' makers tell."""
    feature_seconds: float
    outcomes: Mapping[Trial, Outcome | None]
    truth: Floats
    """Mean over seeds at the best rate."""
    by_seed: Floats
    """[seeds, candidates], at that rate."""
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


def judge_all(targets: Sequence[Records]) -> dict[str, Any]:
    """Tables of all targets, their means, and the verdicts on fusion and prediction."""
    if not targets:
        raise SystemExit("cannot judge: expected records of a target with its truth, run quality.py make")
    tables = {each.about["target"]: _judge(each, targets) for each in targets}
    ways = list(dict.fromkeys(way for table in tables.values() for way in table))
    means = {
        way: {
            key: float(np.mean([table[way][key] for table in tables.values() if way in table]))
            for key in ("weighted tau", "lost by first", "lost by best of three", "cost")
        }
        for way in ways
    }
    return {
        "targets": {each.about["target"]: _summary(each) for each in targets},
        "tables": tables,
        "means": means,
        "fusion": _judge_fusion(targets),
        "prediction": _judge_prediction(targets),
    }


def show_table(judged: Mapping[str, Any]) -> str:
    """For people, as Markdown."""
    lines = ["| ranked by | weighted tau | points lost: first | best of three | cost |", "|---|---|---|---|---|"]
    for way, row in judged["means"].items():
        lines.append(
            f"| {way} | {row['weighted tau']:+.2f} | {row['lost by first']:.2f} | {row['lost by best of three']:.2f} "
            f"| {row['cost']:.1%} |"
        )
    lines += ["", "| target | candidates | " + " | ".join(f"{way}: tau / lost" for way in _SHOWN) + " |"]
    lines.append("|---" * (len(_SHOWN) + 2) + "|")
    for target, table in judged["tables"].items():
        cells = [
            f"{table[way]['weighted tau']:+.2f} / {table[way]['lost by first']:.1f}" if way in table else "–"
            for way in _SHOWN
        ]
        lines.append(f"| {target} | {judged['targets'][target]['num_candidates']} | " + " | ".join(cells) + " |")
    lines += ["", f"Fusion: {json.dumps(judged['fusion'])}", "", f"Prediction: {json.dumps(judged['prediction'])}"]
    return "\n".join(lines)


_SHOWN = ("a second seed of the truth", "ridge", "size", "finals 15%")


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
    names = tuple(name for name in scores if _is_whole(truth.get(name)))
    if len(names) < 5 or len(names) < len(scores):
        return None
    best = {name: max(truth[name].values(), key=lambda seeds: float(np.mean(list(seeds.values())))) for name in names}
    by_seed = np.array([[best[name][seed] for name in names] for seed in (0, 1)])
    shared = [key for key in scores[names[0]]["scores"] if all(key in scores[name]["scores"] for name in names)]
    return Records(
        about=about,
        names=names,
        scores={key: np.array([scores[name]["scores"][key] for name in names]) for key in shared},
        num_parameters=np.array([float(scores[name]["num_parameters"]) for name in names]),
        published=np.array([float(scores[name].get("published", 0.0)) for name in names]),
        feature_seconds=sum(scores[name]["seconds"] for name in names),
        outcomes={_trial(line): _outcome(line) for line in lines if line["kind"] == "trial"},
        truth=by_seed.mean(axis=0),
        by_seed=by_seed,
        epoch_seconds=np.array([float(np.median(seconds[name])) / FULL_EPOCHS for name in names]),
    )


def _is_whole(rates: dict[int, dict[int, float]] | None) -> bool:
    return rates is not None and len(rates) == 3 and all(len(seeds) == 2 for seeds in rates.values())


def _trial(line: Mapping[str, Any]) -> Trial:
    return Trial(model=line["name"], notch=line["notch"], fold=line["fold"], stage=line["stage"])


def _outcome(line: Mapping[str, Any]) -> Outcome | None:
    if line["error"]:
        return None
    count, packed = line["right"]
    right = np.unpackbits(np.frombuffer(base64.b85decode(packed), dtype=np.uint8))[:count]
    return Outcome(item_scores=right.astype(np.float64), loss=line["loss"], seconds=line["seconds"])


def _summary(records: Records) -> dict[str, Any]:
    best = int(records.truth.argmax())
    return {
        "about": records.about["about"],
        "counts": records.about["counts"],
        "num_candidates": len(records.names),
        "best": records.names[best],
        "best_score": float(records.truth[best]),
        "median_score": float(np.median(records.truth)),
    }


def _judge(records: Records, everybody: Sequence[Records]) -> dict[str, dict[str, float]]:
    ways: dict[str, Way] = {"a second seed of the truth": (records.by_seed[1], 1.0)}
    features = records.feature_seconds / _full_seconds(records)
    ways |= {scorer: (values, features) for scorer, values in records.scores.items()}
    ways["size"] = (records.num_parameters, 0.0)
    ways["published accuracy"] = (records.published, 0.0)
    others = [_pool(each) for each in everybody if each is not records]
    if len(others) >= 2:
        ways["fusion of all scorers and size"] = (fuse(learn_fusion(others), _pool(records).parts), features)
    if records.outcomes:
        laws = _laws_without(everybody, records)
        for budget in BUDGETS:
            order, cost = _replay(records, records.scores["ridge"], budget, FINALISTS[budget], laws)
            ways[f"finals {budget:.0%}"] = (order, cost + features)
        order, cost = _halve(records)
        ways["halving on fine-tuning"] = (order, cost)
    truth = records.by_seed[0] if len(records.by_seed) < 2 else records.truth
    return {
        way: _agreement(values, records.by_seed[0] if way.startswith("a second") else truth) | {"cost": cost}
        for way, (values, cost) in ways.items()
    }


def _agreement(values: Floats, truth: Floats) -> dict[str, float]:
    order = np.argsort(-values, kind="stable")
    return {
        "weighted tau": weighted_agreement(values, truth),
        "lost by first": 100 * float(truth.max() - truth[order[0]]),
        "lost by best of three": 100 * float(truth.max() - truth[order[:3]].max()),
    }


def _full_seconds(records: Records) -> float:
    return float(records.epoch_seconds.sum()) * FULL_EPOCHS


def _race(records: Records, chosen: Sequence[str], budget: float, laws: Sequence[Law]) -> FinalsRace:
    """A race over these candidates, replayed to its end."""
    seconds = dict(zip(records.names, records.epoch_seconds.tolist(), strict=True))
    labels, folds = np.array(records.about["labels"]), np.array(records.about["folds"])
    race = FinalsRace(
        list(chosen),
        feature_scores=dict(zip(records.names, records.scores["ridge"].tolist(), strict=True)),
        epoch_seconds=seconds,
        budget_seconds=budget * _full_seconds(records),
        folds=folds,
        guess=(labels == np.bincount(labels).argmax()).astype(np.float64),
        laws=laws,
    )
    while trials := race.next_trials():
        for trial in trials:
            known = records.outcomes.get(trial)
            # what it cost is counted in epochs, so that a crowded GPU does not count
            cost = trial_epochs(trial.stage) * seconds[trial.model]
            race.tell(
                trial,
                None if known is None else Outcome(item_scores=known.item_scores, loss=known.loss, seconds=cost),
            )
    return race


def _replay(records: Records, first: Floats, budget: float, num_finalists: int, laws: Sequence[Law]) -> Way:
    """Finals after a feature race by `first`; those that took no part stand behind, in its order."""
    by_features = np.argsort(-first, kind="stable")
    chosen = [records.names[place] for place in by_features[:num_finalists]]
    race = _race(records, chosen, budget, laws)
    ordered = [row.model for row in race.standings()]
    ordered += [records.names[place] for place in by_features if records.names[place] not in ordered]
    return _places(records, ordered), race.spent_seconds / _full_seconds(records)


def _places(records: Records, ordered: Sequence[str]) -> Floats:
    place = {name: number for number, name in enumerate(ordered)}
    return np.array([-float(place[name]) for name in records.names])


def _halve(records: Records) -> Way:
    """Plain successive halving: all candidates, one rate, one fold; the better half goes on to the next stage."""
    seconds = dict(zip(records.names, records.epoch_seconds.tolist(), strict=True))
    alive, behind, cost = list(records.names), list[str](), 0.0
    for stage in range(len(CYCLES)):
        cost += sum(trial_epochs(stage) * seconds[name] for name in alive)
        found = {name: _score_at(records, name, stage) for name in alive}
        alive.sort(key=lambda name, found=found: -found[name])  # type: ignore[misc]
        kept = max(1, len(alive) // 2) if stage + 1 < len(CYCLES) else len(alive)
        behind = alive[kept:] + behind
        alive = alive[:kept]
    return _places(records, alive + behind), cost / _full_seconds(records)


def _score_at(records: Records, name: str, stage: int) -> float:
    """On the first fold, at the rate that was chosen there."""
    found = [
        float(outcome.item_scores.mean())
        for trial, outcome in records.outcomes.items()
        if outcome is not None and (trial.model, trial.fold, trial.stage) == (name, 0, stage)
    ]
    return max(found, default=0.0)


def _pool(records: Records) -> Pool:
    parts = {**records.scores, "size": records.num_parameters}
    return Pool(name=records.about["target"], parts=parts, truth=records.truth)


def _judge_fusion(targets: Sequence[Records]) -> dict[str, Any]:
    if len(targets) < 3:
        return {"ships": False, "because": f"{len(targets)} targets are too few to leave one out"}
    judged = judge_fusion([_pool(each) for each in targets])
    return {
        "ships": judged.ships,
        "weighted tau": float(judged.fused.mean()),
        "best part": judged.best_part,
        "its weighted tau": float(judged.best_part_alone.mean()),
    }


def _judge_prediction(targets: Sequence[Records]) -> dict[str, Any]:
    """Error and coverage of predicted accuracy after each stage, by the laws of the other targets."""
    rows: dict[int, list[tuple[float, bool]]] = {stage: [] for stage in range(len(CYCLES))}
    for held_out in targets:
        laws = _laws_without(targets, held_out)
        for lesson, scores, before in _lessons(held_out):
            foretold = foretell(scores, lesson.features, before=before, stage=lesson.stage, laws=laws)
            low, high = foretold.interval
            rows[lesson.stage].append((abs(foretold.score - lesson.full), bool(low <= lesson.full <= high)))
    fitted = fit_laws([lesson for each in targets for lesson, *_ in _lessons(each)], num_stages=len(CYCLES))
    return {
        "laws": [dataclasses.asdict(law) for law in fitted],
        "held out": len(targets) > 1,
        "stages": {
            str(stage): {
                "mean error": float(np.mean([error for error, _ in found])),
                "coverage": float(np.mean([covered for _, covered in found])),
                "num": len(found),
            }
            for stage, found in rows.items()
            if found
        },
    }


def _laws_without(targets: Sequence[Records], held_out: Records) -> tuple[Law, ...]:
    """Fitted on the other targets; on this one where there is no other."""
    others = [each for each in targets if each is not held_out] or [held_out]
    return fit_laws([lesson for each in others for lesson, *_ in _lessons(each)], num_stages=len(CYCLES))


def _lessons(records: Records) -> list[tuple[Lesson, Floats, Floats | None]]:
    """What each stage of each candidate says of its truth, of the better half: nobody asks of the others."""
    middle = float(np.median(records.truth))
    found = []
    for place, (name, truth) in enumerate(zip(records.names, records.truth.tolist(), strict=True)):
        for stage in range(len(CYCLES)) if truth >= middle else ():
            scores = _all_folds(records.outcomes, name, stage)
            before = _all_folds(records.outcomes, name, stage - 1) if stage else None
            if scores is not None:
                lesson = Lesson(
                    target=records.about["target"],
                    stage=stage,
                    short=float(scores.mean()),
                    features=float(records.scores["ridge"][place]),
                    full=truth,
                    num_items=len(scores),
                    before=None if before is None else float(before.mean()),
                )
                found.append((lesson, scores, before))
    return found


def _all_folds(outcomes: Mapping[Trial, Outcome | None], name: str, stage: int) -> Floats | None:
    for notch in range(-1, 3):
        found = [outcomes.get(Trial(model=name, notch=notch, fold=fold, stage=stage)) for fold in range(NUM_FOLDS)]
        known = [each.item_scores for each in found if each is not None]
        if len(known) == NUM_FOLDS:
            return np.concatenate(known)
    return None


__all__ = ["Records", "judge_all", "read_records", "show_table"]
