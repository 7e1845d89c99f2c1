"""Training with all accounting on against a loop written by hand; and training as a share of the loop without any data loading.

    python benchmarks/train.py [--device cpu|cuda] [--models NAME…] [--ranks N] [--items N] [--no-compile] [--ratio-only]
                               [--json]

Step time: the same network, loader and optimiser settings; a block of steps of ours and one of the hand-written loop in turns,
each with a loader of its own on prepared images (on a CPU without processes of its own, which would compete for the cores), in
one process (with --ranks N, in N processes under DistributedDataParallel). The ratio is that
of the medians over rounds, with a paired bootstrap. Peak memory: one process each, of fixed length.

Share of the loop without loading: `training.intervening`'s blocks, on JPEGs of 500 x 375 pixels as they are and on the same
images prepared (decoded once), with the verdict that `hound train` would print. On a GPU in bf16, channels-last, compiled.
"""

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from children import measure_in_child
from modelhound.meter import count_cores, describe_machine, seconds_now
from modelhound.records import to_plain

CPU_MODELS = {"zoo:resnet-shapes": 32, "timm:efficientnet_b0": 8}
CUDA_MODELS = {
    "timm:efficientnet_b0": 256,
    "timm:efficientnet_b3": 128,
    "timm:efficientnet_b5": 64,
    "timm:resnet50": 256,
}
"""With the batch each is trained in."""

NUM_ROUNDS = {"cpu": 7, "cuda": 5}
BLOCK_SECONDS = {"cpu": 1.5, "cuda": 0.8}
MEMORY_STEPS = 6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--items", type=int)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--ratio-only", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    known = CUDA_MODELS if asked.device == "cuda" else CPU_MODELS
    num_items = asked.items or (1280 if asked.device == "cuda" else 128)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(count_cores()) as workers:
            list(
                workers.map(
                    _draw_photo, [(Path(folder) / "photos", number) for number in range(num_items)], chunksize=16
                )
            )
        for model in asked.models or known:
            job = {
                "model": model,
                "batch": known.get(model, 32),
                "photos": str(Path(folder) / "photos"),
                "prepared": str(Path(folder) / f"prepared-{len(results)}"),
                "device": asked.device,
                "ratio_only": asked.ratio_only,
                "compile": asked.device == "cuda" and not asked.no_compile,
            }
            results.append(_measure(job, asked.ranks, Path(folder)))
            if not asked.json:
                _show(results[-1])
            else:
                print(f"{model} done", file=sys.stderr)
    document = {
        "machine": to_plain(describe_machine()),
        "device": asked.device,
        "ranks": asked.ranks,
        "models": results,
    }
    if asked.json:
        print(json.dumps(document, indent=1))


def _draw_photo(job: tuple[Path, int]) -> None:
    """A JPEG file of 500 x 375 pixels: soft shapes with some grain, like a photograph; ten classes."""
    from PIL import Image

    folder, number = job
    generator = np.random.default_rng(number)
    path = folder / f"class{number % 10}" / f"{number:06}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    coarse = Image.fromarray(generator.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize((500, 375), 3)
    grain = generator.normal(0, 8, (375, 500, 1))
    Image.fromarray((np.asarray(coarse) + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)


def _measure(job: dict[str, Any], num_ranks: int, folder: Path) -> dict[str, Any]:
    if num_ranks > 1:
        from modelhound.launch import run_on_ranks

        threads = str(max(1, count_cores() // num_ranks))
        sys.path.insert(0, str(Path(__file__).parent))
        found = run_on_ranks(
            "train:compare",
            job,
            num_ranks=num_ranks,
            folder=folder / "ranks",
            device=job["device"],
            environment={"OMP_NUM_THREADS": threads},
        )[0]
    else:
        found = measure_in_child("train:compare", job, timeout_seconds=600)
    if (
        num_ranks == 1 and not job["compile"]
    ):  # compiled once is compiled enough: the GPU's peaks are taken in `compare`
        peaks = {
            who: measure_in_child("train:peak_memory", job, who, timeout_seconds=300) for who in ("ours", "by hand")
        }
        found["peak_memory_bytes"] = peaks
        found["peak_memory_ratio"] = peaks["ours"] / peaks["by hand"]
    return {"model": job["model"], "batch": job["batch"], "compile": job["compile"], **found}


def compare(job: dict[str, Any]) -> dict[str, Any]:
    """All comparisons that one process can make."""
    bench, prepared = _lay_out(job)
    as_photos = bench.course
    bench.course = prepared or as_photos
    if job["device"] == "cpu":
        bench.course = dataclasses.replace(bench.course, workers=0)
    started = seconds_now()
    ours, by_hand = _contestants(bench)
    first = _run(ours, bench, 2)
    compile_seconds = seconds_now() - started
    _run(by_hand, bench, 2)
    num_steps = int(max(4, min(100, BLOCK_SECONDS[job["device"]] // max(1e-3, first))))
    num_steps = int(bench.link.largest(num_steps))
    found: dict[str, Any] = {"first_steps_seconds": compile_seconds, "steps_per_block": num_steps}
    times: dict[str, list[float]] = {"ours": [], "by hand": []}
    for number in range(NUM_ROUNDS[job["device"]]):
        pairs = [("ours", ours), ("by hand", by_hand)]
        for name, contestant in pairs if number % 2 else reversed(pairs):
            bench.link.barrier()
            times[name].append(_run(contestant, bench, num_steps))
    found["seconds_per_step"] = times
    found["ratio"], found["ratio_interval"] = _ratio(times["ours"], times["by hand"])
    if job["device"] == "cuda":
        found |= _cuda_peaks(bench, ours, by_hand)
    found["data"] = {}
    if job["ratio_only"]:
        return found
    bench.course = as_photos
    found["data"]["photos"] = _shares(bench)
    if prepared is not None:
        bench.course = prepared
        found["data"]["prepared"] = _shares(bench)
    return found


def peak_memory(job: dict[str, Any], who: str) -> int:
    """Of this process, after a few steps of one contestant."""
    from modelhound.meter import Meter

    bench, _ = _lay_out(job, prepare=False)
    contestants = dict(zip(("ours", "by hand"), _contestants(bench), strict=True))
    _run(contestants[who], bench, MEMORY_STEPS)
    return Meter("cpu").peak_memory_bytes


def _lay_out(job: dict[str, Any], *, prepare: bool = True) -> tuple[Any, Any]:
    """A bench, and the course of the same items prepared."""
    import torch

    from modelhound.compat import import_timm
    from modelhound.data import open_dataset
    from modelhound.features import build_network
    from modelhound.models import find_models
    from modelhound.settings import PLAIN, PrepareSettings, RecipeSettings
    from modelhound.training import set_up
    from modelhound.verbs.prepare import run_prepare

    import_timm()
    torch.backends.cudnn.benchmark = True
    (model,) = find_models([job["model"]])
    network = build_network(model, None, PLAIN, seed=0)
    dataset = open_dataset(job["photos"])
    recipe = RecipeSettings(batch=job["batch"], compile=job["compile"], augment="none", batchnorm="own")
    device = f"cuda:{torch.cuda.current_device()}" if job["device"] == "cuda" else "cpu"
    bench = set_up(network, dataset, dataset.select(range(4)), recipe, device=device)
    prepared = None
    if prepare and bench.link.num_ranks == 1:
        run_prepare(PrepareSettings(job["photos"], Path(job["prepared"]), models=(job["model"],)))
        prepared = dataclasses.replace(bench.course, dataset=open_dataset(job["prepared"]))
    return bench, prepared


Contestant = Callable[[Iterator[Any], int], float]


def _contestants(bench: Any) -> tuple[Contestant, Contestant]:
    return lambda batches, count: _ours(bench, batches, count), _by_hand(bench)


def _ours(bench: Any, batches: Iterator[Any], count: int) -> float:
    """The loop of `hound train`: the same calls in the same order, with losses logged."""
    from modelhound.training.feed import move_batches
    from modelhound.training.loop import prepare_to_learn
    from modelhound.training.losses import LossLog

    prepare_to_learn(bench)
    bench.laps.begin()
    log = LossLog(bench.device)
    feed = move_batches(batches, bench.device, bench.laps)

    def step() -> None:
        log.add(bench.stepper.step(next(feed), bench.laps))
        bench.laps.lap("logging")
        bench.laps.end_step()

    seconds = _time(step, bench, count)
    log.finish()
    return seconds


def _by_hand(bench: Any) -> Contestant:
    """What one would write: no accounting, the loss looked at in the end."""
    import torch
    import torch.nn.functional as F

    device, bf16 = bench.device, bench.stepper.precision == "bf16"
    network = bench.stepper.network  # the same weights and the same compiled code; a second one would be compiled again
    if bench.link.num_ranks > 1:
        network = torch.nn.parallel.DistributedDataParallel(
            bench.trainable, device_ids=[device] if device != "cpu" else None, gradient_as_bucket_view=True
        )
    learning = [each for each in bench.trainable.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(learning, lr=1e-6, fused=device != "cpu")

    def run(batches: Iterator[Any], count: int) -> float:
        bench.trainable.train()

        def step() -> None:
            batch = next(batches)
            inputs = batch.inputs.to(device, non_blocking=True).contiguous(memory_format=torch.channels_last)
            targets = batch.targets.to(device, non_blocking=True)
            with torch.autocast(device.partition(":")[0], dtype=torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(network(inputs).float(), targets)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        return _time(step, bench, count)

    return run


def _time(step: Callable[[], None], bench: Any, count: int) -> float:
    """Seconds per step; loaders get as many batches to start with as they have processes."""
    import torch

    for _ in range(bench.course.workers + 1):
        step()
    if bench.device != "cpu":
        torch.cuda.synchronize()
    start = seconds_now()
    for _ in range(count):
        step()
    if bench.device != "cpu":
        torch.cuda.synchronize()
    return (seconds_now() - start) / count


def _run(contestant: Contestant, bench: Any, count: int) -> float:
    """One block with a loader of its own."""
    course = bench.course
    num_batches = course.workers + 1 + count + course.prefetch * course.workers
    positions: list[int] = []
    epoch = 0
    while len(positions) < num_batches * course.batch:
        positions += course.positions(epoch).tolist()
        epoch += 1
    batches = course.stream(positions[: num_batches * course.batch])
    try:
        return contestant(batches, count)
    finally:
        batches.close()  # type: ignore[attr-defined]


def _ratio(ours: list[float], by_hand: list[float]) -> tuple[float, list[float]]:
    mine, theirs = np.array(ours), np.array(by_hand)
    draws = np.random.default_rng(0).integers(0, len(mine), (2000, len(mine)))
    resampled = np.median(mine[draws], axis=1) / np.median(theirs[draws], axis=1)
    return float(np.median(mine) / np.median(theirs)), np.quantile(resampled, [0.025, 0.975]).tolist()


def _cuda_peaks(bench: Any, ours: Contestant, by_hand: Contestant) -> dict[str, Any]:
    """Both hold the weights and both optimisers' memory meanwhile; the peaks above that are compared."""
    import torch

    peaks = {}
    for name, contestant in (("ours", ours), ("by hand", by_hand)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        _run(contestant, bench, MEMORY_STEPS)
        peaks[name] = torch.cuda.max_memory_allocated()
    return {"peak_memory_bytes": peaks, "peak_memory_ratio": peaks["ours"] / peaks["by hand"]}


def _shares(bench: Any) -> dict[str, Any]:
    """What `hound train` would say, and the loop without loading as a share of the live one."""
    from modelhound.analysis.bounds import judge_blocks
    from modelhound.training.intervening import intervene

    verdict = judge_blocks(intervene(bench, budget_seconds=8.0))
    without = min(gain.step_seconds for gain in verdict.gains)
    return {
        "items_per_second": bench.course.batch * bench.link.num_ranks / verdict.step_seconds,
        "items_per_second_without_loading": bench.course.batch * bench.link.num_ranks / without,
        "share_of_loop_without_loading": without / verdict.step_seconds,
        "workers": bench.course.workers,
        "verdict": verdict.sentence,
    }


def _show(result: dict[str, Any]) -> None:
    low, high = result["ratio_interval"]
    print(
        f"{result['model']}, batch {result['batch']}: step time / by hand {result['ratio']:.3f} [{low:.3f}, {high:.3f}]"
    )
    if "peak_memory_ratio" in result:
        print(f"    peak memory / by hand {result['peak_memory_ratio']:.3f}")
    for name, share in result["data"].items():
        print(
            f"    {name}: {share['items_per_second']:.0f} items/s, {share['share_of_loop_without_loading']:.0%} of the loop "
            f"without loading; {share['verdict']}"
        )


if __name__ == "__main__":
    main()
