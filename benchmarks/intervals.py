"""Do our intervals hold the truth as often as they say?

    ranking      the interval of a score, from right-or-wrong scores of known probability
    counts       break-even counts, from a few epochs and searches that scatter
    lines        seconds per model of a search, from one timing for each number of models
    bottleneck   what weights for free would bring, from a few readings that scatter
    rounds       what loading for free would bring to a training, from few rounds of few steps that disturb each other

Nothing is timed: the truth is drawn, what was measured is drawn around it. Times scatter by 5 % unless said.

    python benchmarks/intervals.py [--quick] [--parts counts,lines] [--json]
"""

import argparse
import json
from dataclasses import replace

import numpy as np

from modelhound.analysis.bottlenecks import find_bottlenecks
from modelhound.analysis.bounds import judge_blocks
from modelhound.analysis.breakeven import S1, Figures, count_models
from modelhound.analysis.breakeven_findings import Asked, Timed, find_breakeven
from modelhound.analysis.ranking import rank_models
from modelhound.records import (
    Block,
    BlocksMeasured,
    ConfigurationProfiled,
    ModelMeasured,
    PhaseSamples,
    SearchTimed,
    pack_items,
)

SCATTER = 0.05


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


def rounds(repeats: int, num_steps: int, alike: float, num_rounds: int = 5) -> float:
    """Loading for free makes a step twice as fast; a live step is slower or faster by what lasts for several steps or rounds.

    `alike` is the correlation of neighbouring rounds: other work on the machine that slows down loading alone.
    """
    held = 0
    for seed in range(repeats):
        random = np.random.default_rng(seed)
        lasting = [random.standard_normal()]
        while len(lasting) < num_rounds:
            lasting.append(alike * lasting[-1] + np.sqrt(1 - alike**2) * random.standard_normal())
        blocks = []
        for number, slower in enumerate(lasting):
            machine = np.exp(0.2 * random.standard_normal())  # of the whole round
            for condition, seconds, off in (("live", 0.2, 2 * SCATTER * slower), ("host batches", 0.1, 0.0)):
                steps = seconds * machine * np.exp(off + SCATTER * random.standard_normal(num_steps))
                blocks.append(Block(condition=condition, round=number, seconds=tuple(steps.tolist())))
        measured = BlocksMeasured(model="m", num_ranks=1, num_workers=2, num_cores=4, batch=8, blocks=tuple(blocks))
        low, high = judge_blocks(measured).gains[0].interval
        held += low <= 2.0 <= high
    return held / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the repeats")
    parser.add_argument("--parts", default="ranking,counts,lines,bottleneck,rounds")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    many = 20 if asked.quick else 200
    parts = {
        "ranking": lambda: {
            f"{items} items, {chance:.0%}": ranking(many, items, chance)
            for items in (50, 200, 1000)
            for chance in (0.5, 0.9, 0.99)
        },
        "counts": lambda: {f"{number} samples": counts(many, number) for number in (1, 2, 3, 5, 10)},
        "lines": lambda: {str(each): lines(many, each) for each in ((1, 2), (1, 2, 4, 8, 16), (1, 10, 100))},
        "bottleneck": lambda: {f"{number} readings": bottleneck(many, number) for number in (2, 3, 5)},
        "rounds": lambda: {
            f"{steps} steps, alike {alike}": rounds(5 * many, steps, alike)
            for steps in (2, 10, 40)
            for alike in (0.0, 0.3, 0.5, 0.7)
        },
    }
    found = {name: make() for name, make in parts.items() if name in asked.parts.split(",")}
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    for name, rows in found.items():
        print(name)
        for what, value in rows.items():
            print(f"    {what:24} {value:.1%}")


if __name__ == "__main__":
    main()
