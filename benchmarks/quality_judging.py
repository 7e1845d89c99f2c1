"""Everybody against the truth: how well each way of ranking does, what it costs, and whether predictions keep their word.

In:  the records that quality.py made
Out: one table per target and one over all; plain values, ready for JSON
Nothing here trains. Races are replayed from the records by the very code that runs finals.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from modelhound.analysis.foretelling import Law, Lesson, Level, find_level, fit_laws, foretell
from modelhound.analysis.trials import CYCLES, FULL_EPOCHS, NUM_FOLDS, Trial
from quality_fusion import Pool, fuse, judge_fusion, learn_fusion, weighted_agreement
from quality_records import Floats, Records
from quality_replays import Way, halve, replay_finals, turn_folds

__all__ = ["judge_all"]

Bools = NDArray[np.bool_]

BUDGETS = (0.05, 0.10, 0.13, 0.25)
_USUAL_BUDGET = 0.13
_MEASURES = ("weighted tau", "told apart", "lost by first", "lost by best of three")
_TOLD_APART = 1.645  # standard errors of a difference; one pair in twenty that lies so far apart would change its order
_SECOND_SEED = "a second seed of the truth"
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
            for key in (*_MEASURES, "cost")
        }
        for way in ways
    }
    return {
        "targets": {each.about["target"]: _summary(each) for each in targets},
        "tables": tables,
        "means": means,
        "fusion": _judge_fusion(targets),
        "chances": _judge_chances(targets),
        "prediction": _judge_prediction(targets),
    }


def _summary(records: Records) -> dict[str, Any]:
    best = int(records.truth.argmax())
    return {
        "about": records.about["about"],
        "counts": records.about["counts"],
        "num_candidates": len(records.names),
        "num_seeds": len(records.by_seed),
        "seed_deviation": records.seed_deviation,
        "told_apart": float(_told_apart(records)[np.triu_indices(len(records.names), 1)].mean()),
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
    ways = dict[str, Way]()
    features = _FORWARD_EPOCHS / FULL_EPOCHS
    ways |= {scorer: (values, features) for scorer, values in records.scores.items()}
    ways["size"] = (records.num_parameters, 0.0)
    ways["published accuracy"] = (records.published, 0.0)
    others = [_pool(each) for each in everybody if each is not records]
    if len(others) >= 2:
        ways["fusion of scorers, size, family"] = (fuse(learn_fusion(others), _pool(records).parts), features)
    laws = _laws_without(everybody, records)
    for budget in BUDGETS:
        order, cost = replay_finals(records, records.scores["ridge"], budget, laws).way
        ways[f"finals {budget:.0%}"] = (order, cost + features)
    ways["halving on fine-tuning"] = halve(records)
    told = _told_apart(records)
    return (
        {_SECOND_SEED: _judge_seeds(records, told)}
        | {way: _agreement(values, records.truth, told) | {"cost": cost} for way, (values, cost) in ways.items()}
        | _judge_in_turns(records, laws, told)
    )


def _judge_in_turns(records: Records, laws: Sequence[Law], told: Bools) -> dict[str, dict[str, float]]:
    """Ways that test on one third of the items first, the mean of the three thirds: a single one is right or wrong by luck."""
    found: dict[str, list[dict[str, float]]] = {}
    for first in range(NUM_FOLDS):
        turned = turn_folds(records, first)
        order, cost = replay_finals(turned, records.scores["ridge"], _USUAL_BUDGET, laws).way
        ways = {f"finals {_USUAL_BUDGET:.0%}": (order, cost + _FORWARD_EPOCHS / FULL_EPOCHS), "halving": halve(turned)}
        for way, (values, spent) in ways.items():
            row = _agreement(values, records.truth, told) | {"cost": spent}
            found.setdefault(f"{way}, thirds in turns", []).append(row)
    return {way: {key: float(np.mean([row[key] for row in rows])) for key in rows[0]} for way, rows in found.items()}


def _judge_chances(targets: Sequence[Records]) -> dict[str, Any]:
    """How often the first of a race is the best, beside the chance that the race gives it; thirds in turns, all budgets."""
    points = []
    for records in targets:
        laws = _laws_without(targets, records)
        for first, budget in itertools.product(range(NUM_FOLDS), BUDGETS):
            replayed = replay_finals(turn_folds(records, first), records.scores["ridge"], budget, laws)
            is_best = bool(records.truth[replayed.way[0].argmax()] == records.truth.max())
            points.append((records.about["target"], budget, replayed.chance, is_best, replayed.is_certain))
    usual = [each for each in points if each[1] == _USUAL_BUDGET]
    return {
        "num": len(usual),
        "said": float(np.mean([chance for _, _, chance, _, _ in usual])),
        "came true": float(np.mean([is_best for _, _, _, is_best, _ in usual])),
        "by target": {
            name: [float(np.mean([each[place] for each in usual if each[0] == name])) for place in (2, 3)]
            for name in dict.fromkeys(each[0] for each in usual)
        },
        "num races": len(points),
        "certain": sum(each[4] for each in points),
        "certain and right": sum(each[3] and each[4] for each in points),
    }


def _judge_seeds(records: Records, told: Bools) -> dict[str, float]:
    """How well one seed of the truth foretells another, the mean of all pairs of them."""
    found = [
        _agreement(other, seed, told)
        for place, seed in enumerate(records.by_seed)
        for number, other in enumerate(records.by_seed)
        if number != place
    ]
    return {key: float(np.mean([each[key] for each in found])) for key in _MEASURES} | {"cost": 1.0}


def _told_apart(records: Records) -> Bools:
    """[candidates, candidates]: which pairs lie further apart than the truth's seeds make them stray."""
    error = records.seed_deviation / len(records.by_seed) ** 0.5
    apart = np.abs(records.truth[:, None] - records.truth[None, :])
    return np.asarray(apart > _TOLD_APART * 2**0.5 * error)


def _agreement(values: Floats, truth: Floats, told: Bools) -> dict[str, float]:
    order = np.argsort(-values, kind="stable")
    return {
        "weighted tau": weighted_agreement(values, truth),
        "told apart": _agreement_where(told, values, truth),
        "lost by first": 100 * float(truth.max() - truth[order[0]]),
        "lost by best of three": 100 * float(truth.max() - truth[order[:3]].max()),
    }


def _agreement_where(told: Bools, values: Floats, truth: Floats) -> float:
    """Weighted tau over these pairs alone, by the weights of scipy's: those of the places, by either order."""
    same = np.sign(values[:, None] - values[None, :]) * np.sign(truth[:, None] - truth[None, :])
    found = []
    for by in (values, truth):
        weights = 1 / stats.rankdata(-by, method="ordinal")
        pairs = np.where(told, weights[:, None] + weights[None, :], 0.0)
        found.append((same * pairs).sum() / max(1e-12, float(pairs.sum())))
    return float(np.mean(found))


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
        stages = sorted({each.stage for each, _ in lessons})
        levels = {stage: _level([each for each, _ in lessons if each.stage == stage]) for stage in stages}
        for lesson, scores in lessons:
            foretold = foretell(scores, lesson.features, levels[lesson.stage], stage=lesson.stage, laws=laws)
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
    fitted = fit_laws([lesson for each in targets for lesson, _ in _lessons(each)], num_stages=len(CYCLES))
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
    return fit_laws([lesson for each in others for lesson, _ in _lessons(each)], num_stages=len(CYCLES))


def _level(lessons: Sequence[Lesson]) -> Level:
    """Of networks of one data set after one stage."""
    before = [each.before for each in lessons if each.before is not None]
    return find_level(
        np.array([each.short for each in lessons]),
        np.array([each.features for each in lessons]),
        np.array(before) if len(before) == len(lessons) else None,
        num_items=lessons[0].num_items,
    )


def _lessons(records: Records) -> list[tuple[Lesson, Floats]]:
    """What each stage says of the truth on the first fold: of everybody at first, then of the better half, as races go.

    They are chosen by what is known at that stage; chosen by their truth, they would seem to do better than they do.
    """
    found = []
    for stage in range(len(CYCLES)):
        known = [_first_fold(records, name, stage) for name in records.names]
        means = [scores.mean() for scores in known if scores is not None]
        least = float(np.median(means)) if stage and means else 0.0
        for place, (name, scores) in enumerate(zip(records.names, known, strict=True)):
            if scores is None or scores.mean() < least:
                continue
            before = _first_fold(records, name, stage - 1) if stage else None
            lesson = Lesson(
                target=records.about["target"],
                stage=stage,
                short=float(scores.mean()),
                features=float(records.scores["ridge"][place]),
                full=float(records.truth[place]),
                num_items=len(scores),
                before=None if before is None else float(before.mean()),
            )
            found.append((lesson, scores))
    return found


def _first_fold(records: Records, name: str, stage: int) -> Floats | None:
    """At the rate that finals choose."""
    known = records.outcomes.get(Trial(model=name, notch=records.notches[name], fold=0, stage=stage))
    return None if known is None else known.item_scores
