"""Everybody against the truth: how well each way of ranking does, what it costs, and whether predictions keep their word.

In:  the records that quality.py made
Out: one table per target and one over all; plain values, ready for JSON
Nothing here trains. Races are replayed from the records by the very code that runs finals.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from modelhound.analysis.finals import CYCLES, FULL_EPOCHS, NUM_FOLDS, Trial
from modelhound.analysis.foretelling import Law, Lesson, common_fall, fit_laws, foretell
from modelhound.analysis.fusion import Pool, fuse, judge_fusion, learn_fusion, weighted_agreement
from quality_records import Floats, Records
from quality_replays import Way, go_deep, halve, replay_finals

__all__ = ["judge_all"]

BUDGETS = (0.05, 0.10, 0.15, 0.25)
_FORWARD_EPOCHS = 1 / 3  # features take one forward pass, an epoch that and a backward pass of twice the work
_FAMILIES = ("resnet", "mobilenet", "convnext", "efficientnet", "vit", "mixer", "resmlp", "random", "minilm")


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


def _summary(records: Records) -> dict[str, Any]:
    best = int(records.truth.argmax())
    return {
        "about": records.about["about"],
        "counts": records.about["counts"],
        "num_candidates": len(records.names),
        "best": records.names[best],
        "best_score": float(records.truth[best]),
        "median_score": float(np.median(records.truth)),
        "hardware": _hardware(records.about),
    }


def _hardware(about: Mapping[str, Any]) -> str:
    machine = about["machine"]
    names = machine.get("gpus") if str(about["device"]).startswith("cuda") else ()
    return str(names[0] if names else machine.get("cpu") or machine.get("cpu_model") or about["device"])


def _judge(records: Records, everybody: Sequence[Records]) -> dict[str, dict[str, float]]:
    ways: dict[str, Way] = {"a second seed of the truth": (records.by_seed[1], 1.0)}
    features = _FORWARD_EPOCHS / FULL_EPOCHS
    ways |= {scorer: (values, features) for scorer, values in records.scores.items()}
    ways["size"] = (records.num_parameters, 0.0)
    ways["published accuracy"] = (records.published, 0.0)
    others = [_pool(each) for each in everybody if each is not records]
    if len(others) >= 2:
        ways["fusion of scorers, size, family"] = (fuse(learn_fusion(others), _pool(records).parts), features)
    if records.outcomes:
        laws = _laws_without(everybody, records)
        for budget in BUDGETS:
            order, cost = replay_finals(records, records.scores["ridge"], budget, laws)
            ways[f"finals {budget:.0%}"] = (order, cost + features)
            order, cost = go_deep(records, records.scores["ridge"], budget, laws)
            ways[f"one fold to the end {budget:.0%}"] = (order, cost + features)
        order, cost = halve(records)
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


def _pool(records: Records) -> Pool:
    """Scorers, size, and whether a candidate belongs to each family."""
    parts = {**records.scores, "size": records.num_parameters}
    for family in _FAMILIES:
        parts[f"family {family}"] = np.array([float(family in name) for name in records.names])
    families = tuple(next((each for each in _FAMILIES if each in name), name) for name in records.names)
    return Pool(name=records.about["target"], parts=parts, truth=records.truth, families=families)


def _judge_fusion(targets: Sequence[Records]) -> dict[str, Any]:
    if len(targets) < 3:
        return {"ships": False, "because": f"{len(targets)} targets are too few to leave one out"}
    judged = judge_fusion([_pool(each) for each in targets])
    return {
        "ships": judged.ships,
        "weighted tau": float(judged.fused.mean()),
        "best part": judged.best_part,
        "its weighted tau": float(judged.best_part_alone.mean()),
        "of strangers": float(judged.of_strangers.mean()) if len(judged.of_strangers) else None,
        "best part of strangers": float(judged.best_part_of_strangers.mean()) if len(judged.of_strangers) else None,
    }


def _judge_prediction(targets: Sequence[Records]) -> dict[str, Any]:
    """Error and coverage of predicted accuracy after each stage, by the laws of the other targets."""
    points = []
    for held_out in targets:
        laws = _laws_without(targets, held_out)
        lessons = _lessons(held_out)
        falls = [common_fall([each for each, *_ in lessons if each.stage == stage]) for stage in range(len(CYCLES))]
        for lesson, scores, before in lessons:
            fall = falls[lesson.stage]
            foretold = foretell(scores, lesson.features, before=before, fall=fall, stage=lesson.stage, laws=laws)
            low, high = foretold.interval
            points.append(
                {
                    "target": lesson.target,
                    "stage": lesson.stage,
                    "foretold": foretold.score,
                    "low": low,
                    "high": high,
                    "full": lesson.full,
                }
            )
    fitted = fit_laws([lesson for each in targets for lesson, *_ in _lessons(each)], num_stages=len(CYCLES))
    return {
        "laws": [dataclasses.asdict(law) for law in fitted],
        "held out": len(targets) > 1,
        "stages": [_sum_up([each for each in points if each["stage"] == stage], stage) for stage in range(len(CYCLES))],
        "points": points,
    }


def _sum_up(points: Sequence[Mapping[str, Any]], stage: int) -> dict[str, Any]:
    return {
        "epochs": sum(CYCLES[: stage + 1]),
        "num": len(points),
        "mean error": float(np.mean([abs(each["foretold"] - each["full"]) for each in points])),
        "coverage": float(np.mean([each["low"] <= each["full"] <= each["high"] for each in points])),
        "width": float(np.mean([each["high"] - each["low"] for each in points])),
    }


def _laws_without(targets: Sequence[Records], held_out: Records) -> tuple[Law, ...]:
    """Fitted on the other targets; on this one where there is no other."""
    others = [each for each in targets if each is not held_out] or [held_out]
    return fit_laws([lesson for each in others for lesson, *_ in _lessons(each)], num_stages=len(CYCLES))


def _lessons(records: Records) -> list[tuple[Lesson, Floats, Floats | None]]:
    """What each stage says of the truth, of the better half by then: nobody asks of the others.

    They are chosen by what is known at that stage; chosen by their truth, they would seem to do better than they do.
    """
    found = []
    for stage in range(len(CYCLES)):
        known = [_all_folds(records, name, stage) for name in records.names]
        middle = (
            np.median([scores.mean() for scores in known if scores is not None])
            if any(scores is not None for scores in known)
            else 0.0
        )
        for place, (name, scores) in enumerate(zip(records.names, known, strict=True)):
            if scores is None or scores.mean() < middle:
                continue
            before = _all_folds(records, name, stage - 1) if stage else None
            lesson = Lesson(
                target=records.about["target"],
                stage=stage,
                short=float(scores.mean()),
                features=float(records.scores["ridge"][place]),
                full=float(records.truth[place]),
                num_items=len(scores),
                before=None if before is None else float(before.mean()),
            )
            found.append((lesson, scores, before))
    return found


def _all_folds(records: Records, name: str, stage: int) -> Floats | None:
    """At the rate that finals choose."""
    trials = [Trial(model=name, notch=records.notches[name], fold=fold, stage=stage) for fold in range(NUM_FOLDS)]
    known = [each.item_scores for each in map(records.outcomes.get, trials) if each is not None]
    return np.concatenate(known) if len(known) == NUM_FOLDS else None
