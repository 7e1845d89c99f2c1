"""Do our intervals hold the truth as often as they say, and does a race lose no more than its risk?

    ranking      the interval of a score, from right-or-wrong scores of known probability
    counts       break-even counts, from a few epochs and searches that scatter
    lines        seconds per model of a search, from one timing for each number of models
    bottleneck   what weights for free would bring, from a few readings that scatter
    races        whole races over features whose best models are known, because all items are scored as well

Nothing is timed: the truth is drawn, what was measured is drawn around it. Times scatter by 5 % unless said.

    python benchmarks/intervals.py [--quick] [--parts counts,lines] [--json]
"""

import argparse
import json
from dataclasses import replace

import numpy as np
import torch

from modelhound.analysis.bottlenecks import find_bottlenecks
from modelhound.analysis.breakeven import S1, Figures, count_models
from modelhound.analysis.breakeven_findings import Asked, Timed, find_breakeven
from modelhound.analysis.racing import judge_rung, rung_sizes
from modelhound.analysis.ranking import rank_models
from modelhound.records import ConfigurationProfiled, ModelMeasured, PhaseSamples, SearchTimed, pack_items
from modelhound.scores import FeatureSet, score

SCATTER = 0.05
NUM_ITEMS, NUM_CLASSES, NUM_MODELS = 1600, 10, 16


def ranking(repeats: int, num_items: int, chance: float) -> float:
    held = 0
    for seed in range(repeats):
        scores = (np.random.default_rng(seed).random(num_items) < chance).astype(np.float32)
        measured = ModelMeasured(
            model="m",
            num_parameters=1,
            num_features=1,
            num_items=num_items,
            scores={"ridge": float(scores.mean())},
            item_scores={"ridge": pack_items(scores)},
            phases=(),
            wall_seconds=1.0,
            peak_memory_bytes=1,
        )
        low, high = rank_models([measured], rests_on=("ridge",), seed=seed).models[0].interval
        held += low - 1e-9 <= chance <= high + 1e-9
    return held / repeats


def counts(repeats: int, num_samples: int) -> float:
    held = 0
    for seed in range(repeats):
        epochs, searches = 9.0 * np.exp(SCATTER * np.random.default_rng(seed).standard_normal((2, num_samples)))
        figures = Figures(model="m", num_items=1, epoch_seconds=tuple(epochs), search_seconds=tuple(searches / 100))
        low, high = count_models(figures, S1, seed=seed).interval
        held += low <= 1000 <= high
    return held / repeats


def lines(repeats: int, numbers: tuple[int, ...]) -> float:
    held = 0
    for seed in range(repeats):
        off = np.exp(SCATTER * np.random.default_rng(seed).standard_normal(len(numbers)))
        searches = [
            SearchTimed(way="plain", num_models=each, models=(), num_items=1, seconds=(0.2 + 0.3 * each) * float(one))
            for each, one in zip(numbers, off, strict=True)
        ]
        timed = replace(Timed(trainings=(), features=(), searches=()), searches=searches)
        low, high = find_breakeven(timed, Asked(epochs=1, assume={}, seed=seed)).ways[0].interval
        held += low <= 0.3 <= high
    return held / repeats


def bottleneck(repeats: int, num_reads: int) -> float:
    held = 0
    for seed in range(repeats):
        reads = tuple((3.0 * np.exp(SCATTER * np.random.default_rng(seed).standard_normal(num_reads))).tolist())
        low, high = find_bottlenecks([_profile(reads)], seed=seed).bottlenecks[0].interval
        held += low <= 4.1 / 1.1 <= high
    return held / repeats


def _profile(reads: tuple[float, ...]) -> ConfigurationProfiled:
    """Three seconds of reading, ten batches of 0.01 and 0.1 seconds."""
    phases = {"read weights": reads[:1], "wait for data": (0.01,) * 10, "forward": (0.1,) * 10}
    return ConfigurationProfiled(
        model="m",
        stamp="",
        data="d",
        device="cpu",
        precision="fp32",
        configuration="full",
        form="full",
        layers="full",
        num_layers=1,
        num_layers_run=1,
        num_heads=1,
        batch=4,
        num_batches=10,
        num_batches_asked=10,
        num_warmup=2,
        num_items=40,
        weight_bytes=1,
        input_bytes_per_item=0,
        flops_per_item=1.0,
        phases=tuple(PhaseSamples(phase=name, seconds=seconds) for name, seconds in phases.items()),
        wall_seconds=sum(map(sum, phases.values())),
        cold=True,
        cold_read_seconds=reads,
        warm_read_seconds=(),
        usual_build_seconds=(),
        scorings=(),
        peak_memory_bytes=1,
    )


def races(repeats: int, top: int, risk: float) -> dict[str, float]:
    """Models that see the same 64 hidden numbers of an item through noise of their own, in 16 to 512 features."""
    num_lost = num_dropped = 0
    expected, regret = 0.0, []
    for seed in range(repeats):
        features, labels = _draw_models(seed)
        final = {model: _judge(each, labels).mean() for model, each in enumerate(features)}
        best = sorted(final, key=lambda model: -final[model])
        alive = list(final)
        for size in rung_sizes(NUM_ITEMS, NUM_CLASSES)[:-1]:
            scores = np.stack([_judge(features[model][:size], labels[:size]) for model in alive])
            verdicts = judge_rung([str(model) for model in alive], scores, top=top, risk=risk, seed=seed)
            gone = {int(each.model) for each in verdicts if not each.stays}
            num_dropped += len(gone)
            num_lost += sum(bool(final[model] >= final[best[top - 1]]) for model in gone)
            expected += sum(each.chance for each in verdicts if not each.stays)
            alive = [model for model in alive if model not in gone]
        regret.append(final[best[0]] - max(final[model] for model in alive))
    return {
        "dropped": num_dropped,
        "lost": num_lost,
        "lost as foretold": round(expected, 1),
        "mean regret": float(np.mean(regret)),
        "largest regret": float(max(regret)),
    }


def _draw_models(seed: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = (torch.arange(NUM_ITEMS) % NUM_CLASSES)[torch.randperm(NUM_ITEMS, generator=random)]
    hardness = torch.rand(NUM_ITEMS, 1, generator=random) * 1.5 + 0.3
    hidden = torch.randn(NUM_CLASSES, 64, generator=random)[labels]
    hidden = hidden + hardness * 1.5 * torch.randn(NUM_ITEMS, 64, generator=random)
    features = []
    for model in range(NUM_MODELS):
        width, noise = 16 << model % 6, 0.5 + 1.5 * float(torch.rand(1, generator=random))
        seen = hidden @ (torch.randn(64, width, generator=random) / 8)
        features.append(seen + noise * torch.randn(NUM_ITEMS, width, generator=random))
    return features, labels


def _judge(features: torch.Tensor, labels: torch.Tensor) -> np.ndarray:
    given = FeatureSet(features=features, targets=labels, num_classes=NUM_CLASSES)
    found = score(given, ["ridge"], seed=0).values["ridge"].item_scores
    assert found is not None
    return found.astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the repeats")
    parser.add_argument("--parts", default="ranking,counts,lines,bottleneck,races")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    many, few = (20, 4) if asked.quick else (200, 40)
    parts = {
        "ranking": lambda: {
            f"{items} items, {chance:.0%}": ranking(many, items, chance)
            for items in (50, 200, 1000)
            for chance in (0.5, 0.9, 0.99)
        },
        "counts": lambda: {f"{number} samples": counts(many, number) for number in (1, 2, 3, 5, 10)},
        "lines": lambda: {str(each): lines(many, each) for each in ((1, 2), (1, 2, 4, 8, 16), (1, 10, 100))},
        "bottleneck": lambda: {f"{number} readings": bottleneck(many, number) for number in (2, 3, 5)},
        "races": lambda: {f"top {top}, risk {risk:.0%}": races(few, top, risk) for top, risk in ((5, 0.01), (1, 0.05))},
    }
    found = {name: make() for name, make in parts.items() if name in asked.parts.split(",")}
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    for name, rows in found.items():
        print(name)
        for what, value in rows.items():
            print(f"    {what:24} {value if isinstance(value, dict) else f'{value:.1%}'}")


if __name__ == "__main__":
    main()
