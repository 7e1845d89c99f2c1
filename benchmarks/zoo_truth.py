"""Does the search name the networks that really fine-tune best?

The question a search answers is: I have these N items, which network shall I fine-tune on them? So every network is
fine-tuned on the very items that the search sees (all layers, a new head, best of several learning rates, two seeds) and
tested on all the other items of the data set. Then the rankings of `hound search` are held against that truth: every
scorer, and the list ordered by size as control.

    python benchmarks/zoo_truth.py --data fashion --items 500 --out truth.json     # the truth: minutes on a GPU
    python benchmarks/zoo_truth.py --truth truth.json                              # rankings against it, as Markdown
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

LEARNING_RATES = (3e-3, 1e-3, 3e-4)
SEEDS = (0, 1)
NUM_EPOCHS = 25
BATCH = 32


def fine_tune_all(
    data: str, num_items: int, models: tuple[ModelRef, ...], rates: Sequence[float], device: str, processes: int
) -> dict[str, Any]:
    """Truth of every model: {name: {learning rate: [accuracy per seed]}}."""
    started = seconds_now()
    truth: dict[str, dict[str, list[float]]] = {}
    jobs = [(data, num_items, str(model), rate, seed, device) for model in models for rate in rates for seed in SEEDS]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=context) as pool:
        for done, (job, accuracy) in enumerate(zip(jobs, pool.map(fine_tune, jobs), strict=True), start=1):
            _, _, name, rate, seed, _ = job
            truth.setdefault(name, {}).setdefault(str(rate), []).append(accuracy)
            print(
                f"{done}/{len(jobs)} {seconds_now() - started:5.0f} s  {name} rate {rate} seed {seed}: {accuracy:.4f}"
            )
    return {
        "data": data,
        "epochs": NUM_EPOCHS,
        "batch": BATCH,
        "num_items": num_items,
        "learning_rates": rates,
        "seeds": SEEDS,
        "device": device,
        "machine": to_plain(describe_machine()),
        "wall_seconds": seconds_now() - started,
        "accuracy": truth,
    }


def fine_tune(job: tuple[str, int, str, float, int, str]) -> float:
    """Accuracy on the items left over, of one model at one learning rate and seed."""
    data, num_items, name, rate, seed, device = job
    torch.set_num_threads(1 if device != "cpu" else 2)
    model = find_models([name])[0]
    source = source_of(model)
    network = source.build(model.name, source.read_weights(model.name))
    dataset = open_dataset(data)
    searched = set(open_dataset(data, limit=num_items).item_names)
    batches = list(load_batches(dataset, network.preprocessing, batch=256, workers=0))
    images = torch.cat([batch.inputs_on(device) for batch in batches])
    labels = torch.cat([batch.targets for batch in batches]).to(device)
    is_train = torch.tensor([item in searched for item in dataset.item_names], device=device)
    torch.manual_seed(seed)
    network.module.reset_classifier(len(dataset.class_names))  # type: ignore[operator]
    module = network.module.to(device, memory_format=torch.channels_last)
    _train(module, images[is_train], labels[is_train], rate)
    return _accuracy(module, images[~is_train], labels[~is_train])


def _train(module: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor, rate: float) -> None:
    num_batches = len(labels) // BATCH
    optimiser = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=NUM_EPOCHS * num_batches)
    module.train()
    for _ in range(NUM_EPOCHS):
        order = torch.randperm(len(labels), device=labels.device)
        for chosen in order[: num_batches * BATCH].split(BATCH):
            loss = torch.nn.functional.cross_entropy(module(images[chosen]), labels[chosen], label_smoothing=0.1)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()


def _accuracy(module: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    module.eval()
    with torch.inference_mode():
        predicted = torch.cat([module(part).argmax(1) for part in images.split(250)])
    return float((predicted == labels).float().mean())


def best_rate_accuracies(truth: dict[str, Any]) -> dict[str, list[float]]:
    """Per model, the accuracies per seed at its better learning rate."""
    return {name: max(rates.values(), key=np.mean) for name, rates in truth["accuracy"].items()}


def compare(truth: dict[str, Any], device: str) -> list[dict[str, Any]]:
    """How each way of ranking agrees with the truth."""
    accuracies = best_rate_accuracies(truth)
    result = modelhound.search(
        truth["data"], list(accuracies), limit=truth["num_items"], device=device, exhaustive=True
    )
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
    parser.add_argument("--items", type=int, default=500, help="fine-tune on this many items")
    asked = parser.parse_args()
    if asked.out:
        models = find_models(asked.models.split(","))
        rates = [float(rate) for rate in asked.rates.split(",")]
        truth = fine_tune_all(asked.data, asked.items, models, rates, resolve_device(asked.device), asked.processes)
        asked.out.write_text(json.dumps(truth, indent=1))
    if asked.truth:
        parts = [json.loads(path.read_text()) for path in asked.truth]
        truth = {**parts[0], "accuracy": {name: rates for part in parts for name, rates in part["accuracy"].items()}}
        rows = compare(truth, asked.device)
        print(f"{truth['data']}, {truth['num_items']} items, {len(truth['accuracy'])} networks\n")
        print("| ranked by | Kendall tau | weighted tau | points lost by taking the first |\n|---|---|---|---|")
        for row in rows:
            print("| {} | {:+.2f} | {:+.2f} | {:.1f} |".format(*row.values()))
        print("\n| network | accuracy after fine-tuning, per seed | best rate |\n|---|---|---|")
        for name, rates in sorted(truth["accuracy"].items(), key=lambda item: -max(map(np.mean, item[1].values()))):
            rate = max(rates, key=lambda each: float(np.mean(rates[each])))
            print(f"| {name} | {', '.join(f'{accuracy:.1%}' for accuracy in rates[rate])} | {rate} |")


if __name__ == "__main__":
    main()
