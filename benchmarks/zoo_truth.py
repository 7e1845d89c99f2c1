"""Does the search name the networks that really fine-tune best?

Fine-tunes every zoo network on an embedded data set (all layers, a new head; best of several learning rates; each item is
predicted by a network that did not see it, two-fold, with two seeds) and holds the rankings of `hound search` against that
truth: every scorer, and the list ordered by size as control.

    python benchmarks/zoo_truth.py --data fashion --out truth.json          # the truth, minutes on a GPU
    python benchmarks/zoo_truth.py --data fashion --truth truth.json        # rankings against it, as a Markdown table
"""

import argparse
import concurrent.futures
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import modelhound
from modelhound.data import load_batches, open_dataset
from modelhound.meter import describe_machine, resolve_device, seconds_now
from modelhound.models import ModelRef, find_models, source_of
from modelhound.records import to_plain

LEARNING_RATES = (1e-2, 3e-3, 1e-3, 3e-4)
SEEDS = (0, 1)
NUM_FOLDS = 2
NUM_EPOCHS = 25
BATCH = 64


def fine_tune_all(
    data: str, models: tuple[ModelRef, ...], rates: Sequence[float], device: str, processes: int
) -> dict[str, Any]:
    """Truth of every model: {name: {learning rate: [accuracy per seed]}}."""
    started = seconds_now()
    truth: dict[str, dict[str, list[float]]] = {}
    jobs = [(data, str(model), rate, seed, device) for model in models for rate in rates for seed in SEEDS]
    # The slowest first, so that no process is left alone with one at the end.
    jobs.sort(key=lambda job: "efficientnet" not in job[1])
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        for done, (job, accuracy) in enumerate(zip(jobs, pool.map(fine_tune, jobs), strict=True), start=1):
            truth.setdefault(job[1], {}).setdefault(str(job[2]), []).append(accuracy)
            print(
                f"{done}/{len(jobs)} {seconds_now() - started:5.0f} s  {job[1]} rate {job[2]} seed {job[3]}: {accuracy:.4f}"
            )
    return {
        "data": data,
        "epochs": NUM_EPOCHS,
        "batch": BATCH,
        "folds": NUM_FOLDS,
        "learning_rates": rates,
        "seeds": SEEDS,
        "device": device,
        "machine": to_plain(describe_machine()),
        "wall_seconds": seconds_now() - started,
        "accuracy": truth,
    }


def fine_tune(job: tuple[str, str, float, int, str]) -> float:
    """Cross-fitted accuracy of one model at one learning rate and seed."""
    data, name, rate, seed, device = job
    torch.set_num_threads(1 if device != "cpu" else 2)
    model = find_models([name])[0]
    dataset = open_dataset(data)
    source = source_of(model)
    weights = source.read_weights(model.name)
    preprocessing = source.build(model.name, weights).preprocessing
    images, labels = (
        torch.cat(parts).to(device)
        for parts in zip(*load_batches(dataset, preprocessing, batch=256, workers=0), strict=True)
    )
    folds = torch.from_numpy(np.random.default_rng(seed).permutation(len(labels)) % NUM_FOLDS).to(device)
    correct = 0
    for fold in range(NUM_FOLDS):
        torch.manual_seed(1000 * seed + fold)
        module = source.build(model.name, weights).module
        module.reset_classifier(len(dataset.class_names))  # type: ignore[operator]
        train, test = (folds != fold).nonzero().flatten(), (folds == fold).nonzero().flatten()
        correct += _train_and_count(module.to(device), images, labels, train, test, rate)
    return correct / len(labels)


def _train_and_count(
    module: torch.nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    train: torch.Tensor,
    test: torch.Tensor,
    rate: float,
) -> int:
    steps = NUM_EPOCHS * (len(train) // BATCH)
    optimiser = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=steps)
    module.train()
    for _ in range(NUM_EPOCHS):
        order = train[torch.randperm(len(train), device=train.device)]
        for chosen in order[: len(order) // BATCH * BATCH].split(BATCH):
            loss = torch.nn.functional.cross_entropy(module(images[chosen]), labels[chosen], label_smoothing=0.1)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    module.eval()
    with torch.inference_mode():
        return sum(int((module(images[part]).argmax(1) == labels[part]).sum()) for part in test.split(250))


def best_rate_accuracies(truth: dict[str, Any]) -> dict[str, list[float]]:
    """Per model, the accuracies per seed at its better learning rate."""
    return {name: max(rates.values(), key=np.mean) for name, rates in truth["accuracy"].items()}


def compare(truth: dict[str, Any], data: str, limit: int | None, device: str, run: Path) -> list[dict[str, Any]]:
    """How each way of ranking agrees with the truth."""
    accuracies = best_rate_accuracies(truth)
    result = modelhound.search(data, list(accuracies), limit=limit, device=device, run=run)
    rows = {row.model: row for row in result.ranking.models}
    names = list(rows)
    true = np.array([np.mean(accuracies[name]) for name in names])
    ways = {scorer: [rows[name].scores[scorer] for name in names] for scorer in rows[names[0]].scores}
    ways["model size (control)"] = [float(rows[name].num_parameters) for name in names]
    seeds = np.array([accuracies[name] for name in names]).T
    table = [_agreement("a second seed of the truth", seeds[1], seeds[0])]
    table += [_agreement(way, np.array(scores), true) for way, scores in ways.items()]
    return table


def _agreement(way: str, scores: np.ndarray, true: np.ndarray) -> dict[str, Any]:
    return {
        "ranked by": way,
        "kendall tau": float(stats.kendalltau(scores, true).statistic),
        "weighted tau": float(stats.weightedtau(scores, true).statistic),
        "points lost by taking the first": float(100 * (true.max() - true[scores.argmax()])),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="fashion", choices=["fashion", "digits"])
    parser.add_argument("--models", default="zoo:*")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--rates", default=",".join(map(str, LEARNING_RATES)), help="learning rates to take the best of"
    )
    parser.add_argument("--processes", type=int, default=1, help="fine-tune this many networks at once")
    parser.add_argument("--out", type=Path, help="make the truth and write it here")
    parser.add_argument("--truth", type=Path, nargs="+", help="compare rankings with the truth in these files")
    parser.add_argument("--limits", default="300,all")
    asked = parser.parse_args()
    if asked.out:
        models = find_models(asked.models.split(","))
        rates = [float(rate) for rate in asked.rates.split(",")]
        truth = fine_tune_all(asked.data, models, rates, resolve_device(asked.device), asked.processes)
        asked.out.write_text(json.dumps(truth, indent=1))
    if asked.truth:
        parts = [json.loads(path.read_text()) for path in asked.truth]
        truth = {**parts[0], "accuracy": {name: rates for part in parts for name, rates in part["accuracy"].items()}}
        for limit in asked.limits.split(","):
            count = None if limit == "all" else int(limit)
            rows = compare(truth, asked.data, count, asked.device, Path("runs") / f"truth-{asked.data}-{limit}")
            print(f"\n{asked.data}, {limit} items, {len(truth['accuracy'])} networks\n")
            print("| ranked by | Kendall tau | weighted tau | points lost by taking the first |\n|---|---|---|---|")
            for row in rows:
                print("| {} | {:+.2f} | {:+.2f} | {:.1f} |".format(*row.values()))


if __name__ == "__main__":
    main()
