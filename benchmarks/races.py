"""Does a race lose no more of the best models than its risk says? And does it drop the others?

    drawn    16 models that see the same 64 hidden numbers of an item through noise of their own, in 16 to 512 features
    zoo      the embedded networks over draws of 1 000 items of `digits` and of `fashion`
    copies   24 near-copies of a random ResNet-18, half of each differs, over draws of 800 of 1 000 images (`engine_pools`)

Whole races, with rungs as in a search. The truth is the score on all items, which all models get here as well. Two rules see
the same features: the one that searches use, and what they used before, resampling alone, widened by half, on rungs that grow
fourfold. Nothing is timed.

    python benchmarks/races.py [--quick] [--pool NAME…] [--json]
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from engine_pools import POOLS, make_items, make_models
from modelhound.analysis.racing import Evidence, Verdict, judge_rung, rung_sizes
from modelhound.analysis.ranking import resample_means
from modelhound.data import open_dataset
from modelhound.data.choosing import choose_balanced
from modelhound.features.many import Session
from modelhound.measuring.scoring import tested_only
from modelhound.models import find_models
from modelhound.scores import FeatureSet, score
from modelhound.settings import ModelSettings

RULES = ("now", "before")
TOPS = ((5, 0.01), (1, 0.05))
NUM_CLASSES = 10

Draw = tuple[list[torch.Tensor], torch.Tensor]
"""Features of every model and the labels, items in the order of the rungs."""


def drawn(repeats: int) -> Iterator[Draw]:
    num_items, num_models = 1600, 16
    for seed in range(repeats):
        random = torch.Generator().manual_seed(seed)
        labels = (torch.arange(num_items) % NUM_CLASSES)[torch.randperm(num_items, generator=random)]
        hardness = torch.rand(num_items, 1, generator=random) * 1.5 + 0.3
        hidden = torch.randn(NUM_CLASSES, 64, generator=random)[labels]
        hidden = hidden + hardness * 1.5 * torch.randn(num_items, 64, generator=random)
        features = []
        for model in range(num_models):
            width, noise = 16 << model % 6, 0.5 + 1.5 * float(torch.rand(1, generator=random))
            seen = hidden @ (torch.randn(64, width, generator=random) / 8)
            features.append(seen + noise * torch.randn(num_items, width, generator=random))
        yield features, labels


def zoo(repeats: int) -> Iterator[Draw]:
    for data in ("digits", "fashion"):
        features, labels = extract(data, ["zoo:*-*"], limit=1700)
        yield from redrawn(features, labels, repeats // 2, num_items=1000)


def copies(repeats: int) -> Iterator[Draw]:
    for seed in range(max(1, repeats // 10)):
        folder = Path(tempfile.mkdtemp(prefix="hound-races-"))
        try:
            models = make_models(str(folder / "models"), POOLS["resnet18-50"], seed=seed)
            features, labels = extract(make_items(folder, POOLS["resnet18-50"]), models)
        finally:
            shutil.rmtree(folder)
        yield from redrawn(features, labels, 5, num_items=800)


def extract(data: str, models: list[str], limit: int | None = None) -> Draw:
    dataset = open_dataset(data, limit=limit)
    found: dict[str, torch.Tensor] = {}
    refs = find_models(models)
    with Session(dataset, ModelSettings(), seed=0, device="cpu", remember=False) as session:
        session.survey(dict.fromkeys(refs, ""), failed=fail)
        everything = range(len(dataset))
        session.run(
            tuple(map(str, refs)),
            everything,
            everything,
            done=lambda model, rows, keep: found.update({model: rows.features}),
            failed=fail,
        )
    return [found[str(model)] for model in refs], torch.from_numpy(dataset.targets)


def fail(model: str, phase: str, error: Exception) -> None:
    raise SystemExit(f"failed: {model} in {phase}: {error}")


def redrawn(features: list[torch.Tensor], labels: torch.Tensor, repeats: int, *, num_items: int) -> Iterator[Draw]:
    """Some of the items, in rungs of all classes alike."""
    for seed in range(repeats):
        chosen = choose_balanced(labels.numpy(), limit=num_items, seed=seed)
        order: list[int] = []
        for size in rung_sizes(num_items, NUM_CLASSES):
            more = chosen[choose_balanced(labels.numpy()[chosen], limit=size, seed=seed)].tolist()
            order += sorted(set(more) - set(order))
        places = torch.as_tensor(order)
        yield [each[places] for each in features], labels[places]


def race(draws: Iterator[Draw]) -> dict[str, Any]:
    columns = ("dropped", "best lost", "foretold", "run", "regret")
    counts = {(rule, *top): dict.fromkeys(columns, 0.0) for rule in RULES for top in TOPS}
    num_races = num_models = 0
    for seed, (features, labels) in enumerate(draws):
        final = {str(model): float(judge(each, labels).mean()) for model, each in enumerate(features)}
        standings = {
            size: {str(model): stand(each[:size], labels[:size], seed) for model, each in enumerate(features)}
            for size in rung_sizes(len(labels), NUM_CLASSES)[:-1]
        }
        for (rule, top, risk), count in counts.items():
            run(standings, final, len(labels), count, rule=rule, top=top, risk=risk, seed=seed)
        num_races, num_models = num_races + 1, len(features)
    rows = [
        {"rule": rule, "top": top, "risk": risk, **count}
        | {"run": count["run"] / num_races, "regret": count["regret"] / num_races}
        for (rule, top, risk), count in counts.items()
    ]
    return {"races": num_races, "models": num_models, "rows": rows}


def run(
    standings: dict[int, dict[str, Evidence]],
    final: dict[str, float],
    num_items: int,
    count: dict[str, float],
    *,
    rule: str,
    top: int,
    risk: float,
    seed: int,
) -> None:
    """One race by one rule, counted; `run` is the share of all passes of items through models that are made."""
    bar = sorted(final.values())[-top]
    alive = set(final)
    for size in standings if rule == "now" else list(standings)[::2]:
        evidence = {model: each for model, each in standings[size].items() if model in alive}
        judge_all = judge_rung if rule == "now" else judge_as_before
        for verdict in judge_all(evidence, top=top, risk=risk, seed=seed):
            if not verdict.stays:
                alive.remove(verdict.model)
                count["dropped"] += 1
                count["best lost"] += final[verdict.model] >= bar
                count["foretold"] += verdict.chance
                count["run"] += size / num_items / len(final)
    count["run"] += len(alive) / len(final)
    count["regret"] += max(final.values()) - max(final[model] for model in alive)


def judge_as_before(evidence: dict[str, Evidence], *, top: int, risk: float, seed: int) -> list[Verdict]:
    """By resampling alone, its deviations widened by half."""
    item_scores = np.stack([each.item_scores for each in evidence.values()])
    scores = item_scores.mean(axis=1)
    widened = scores[:, None] + 1.5 * (resample_means(item_scores, seed=seed) - scores[:, None])
    chances = (widened >= np.sort(widened, axis=0)[-min(top, len(scores))]).mean(axis=1)
    best = set(np.argsort(-scores, kind="stable")[:top].tolist())
    return [
        Verdict(model=model, score=float(score), chance=float(chance), stays=bool(chance >= risk or place in best))
        for place, (model, score, chance) in enumerate(zip(evidence, scores, chances, strict=True))
    ]


def stand(features: torch.Tensor, labels: torch.Tensor, seed: int) -> Evidence:
    half = torch.from_numpy(choose_balanced(labels.numpy(), limit=len(labels) // 2, seed=seed))
    item_scores = judge(features, labels)
    return Evidence(
        item_scores=item_scores,
        item_gains=item_scores[half.numpy()] - judge(features[half], labels[half]),
        other_score=float(np.delete(item_scores, half.numpy()).mean()),
    )


def judge(features: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    given = FeatureSet(features=features, targets=labels, num_classes=NUM_CLASSES)
    found = score(given, ["ridge"], seed=0).values["ridge"].item_scores
    assert found is not None
    return tested_only(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the races")
    parser.add_argument("--pool", choices=("drawn", "zoo", "copies"), action="append")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 4 if asked.quick else 40
    pools = {"drawn": drawn, "zoo": zoo, "copies": copies}
    found = {name: race(make(repeats)) for name, make in pools.items() if name in (asked.pool or pools)}
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    print(
        "| pool | races x models | rule | top | risk | run | dropped | of the best | foretold | points lost by the best |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, pool in found.items():
        for row in pool["rows"]:
            asked_for = f"{row['rule']} | {row['top']} | {row['risk']:.0%}"
            lost, regret = f"{row['best lost']:.0f} | {row['foretold']:.1f}", f"{100 * row['regret']:.2f}"
            came = f"{row['run']:.0%} | {row['dropped']:.0f} | {lost} | {regret}"
            print(f"| {name} | {pool['races']} x {pool['models']} | {asked_for} | {came} |")


if __name__ == "__main__":
    main()
