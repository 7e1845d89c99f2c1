"""Training with all accounting on against a loop written by hand; and training as a share of the loop without any data loading.

    python benchmarks/train.py [--device cpu|cuda] [--models NAME…] [--ranks N] [--items N] [--rounds N] [--no-compile]
                               [--ratio-only] [--seconds N] [--json]

Step time: the same network, batches and optimiser; a block of steps of ours and one of the hand-written loop in turns, fed by
one loader of prepared images (on a CPU without processes of its own, which would compete for the cores), in one process (with
--ranks N, in N processes under DistributedDataParallel). The ratio is that of the medians over rounds, with a paired bootstrap.
Peak memory: of a GPU in the same process, of a CPU in one process each, of fixed length.

Share of the loop without loading: `training.intervening`'s blocks, on JPEGs of 500 x 375 pixels as they are and on the same
images prepared (decoded once), with the verdict that `hound train` would print.

On a GPU in bf16 and channels-last, as it is and compiled. All networks are compiled at once beforehand, into a cache on disk:
one at a time would take most of the --seconds that the whole may take. What is measured is written to the folder $OUT, where
that is set, as it comes.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from children import measure_in_child
from modelhound.launch import Outcome, run_in_fresh_process, run_on_ranks
from modelhound.meter import count_cores, describe_machine, seconds_now
from modelhound.records import to_plain

CPU_MODELS = {"zoo:resnet-shapes": 32, "timm:efficientnet_b0": 8}
CUDA_MODELS = {
    "timm:efficientnet_b0": 128,
    "timm:resnet50": 128,
    "timm:efficientnet_b3": 128,
    "timm:efficientnet_b5": 64,
}
"""With the batch each is trained in."""

NUM_ROUNDS = {"cpu": 7, "cuda": 5}
BLOCK_SECONDS = {"cpu": 1.5, "cuda": 0.8}
LEAST_STEPS, MOST_STEPS = 4, 40
MEMORY_STEPS = 6
SHARE_ROUNDS, SHARE_SECONDS = 4, 6.0
COMPILING_SECONDS = 110.0  # waited for all networks; those that take longer go on beside the first measurements
PATIENCE_SECONDS = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--models", nargs="*")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--items", type=int)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--ratio-only", action="store_true")
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    started = seconds_now()
    known = CUDA_MODELS if asked.device == "cuda" else CPU_MODELS
    models = list(asked.models or known)
    document: dict[str, Any] = {"device": asked.device, "ranks": asked.ranks, "machine": to_plain(describe_machine())}
    document["models"] = results = []
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(len(models) + 1) as helpers:
        folder = Path(name)
        _draw_photos(folder / "photos", asked.items or (1280 if asked.device == "cuda" else 128))
        jobs = [
            {
                "model": model,
                "batch": known.get(model, 32),
                "photos": str(folder / "photos"),
                "prepared": str(folder / "prepared"),
                "device": asked.device,
                "rounds": asked.rounds or NUM_ROUNDS[asked.device],
                "ratio_only": asked.ratio_only,
                "compile": asked.device == "cuda" and not asked.no_compile,
                "cache": str(folder / "compiled"),
                "so_far": str(_keeping_folder(folder) / f"train-{model.replace(':', '-')}.json"),
            }
            for model in models
        ]
        preparing = helpers.submit(measure_in_child, "train:prepare", jobs[0], models)
        compiling = {job["model"]: helpers.submit(_compile, job) for job in jobs if job["compile"]}
        preparing.result()
        concurrent.futures.wait(compiling.values(), timeout=COMPILING_SECONDS)
        for number, job in enumerate(jobs):
            left = asked.seconds - (seconds_now() - started)
            if job["model"] in compiling:
                outcome = compiling[job["model"]].result()
                job["compile"] = outcome.ok
            job["seconds"] = left / (len(jobs) - number) * 1.2
            found = _measure(job, asked.ranks, folder, timeout_seconds=max(20.0, left + PATIENCE_SECONDS))
            if job["model"] in compiling:
                found["compiling"] = {"seconds": outcome.value, "ending": outcome.ending, "words": _end(outcome)}
            results.append(found)
            print(_shown(found), file=sys.stderr if asked.json else sys.stdout, flush=True)
            _keep(_keeping_folder(folder) / "train.json", document)
    if asked.json:
        print(json.dumps(document, indent=1))


def _draw_photos(folder: Path, num_items: int) -> None:
    with concurrent.futures.ProcessPoolExecutor(count_cores()) as workers:
        list(workers.map(_draw_photo, [(folder, number) for number in range(num_items)], chunksize=16))


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


def _keeping_folder(folder: Path) -> Path:
    return Path(os.environ.get("OUT") or folder)


def _keep(path: Path, document: Any) -> None:
    path.write_text(json.dumps(document, indent=1))


def _compile(job: dict[str, Any]) -> Outcome:
    """One step of the compiled network, in a process whose work others find on disk."""
    environment = {**_paths(), "TORCHINDUCTOR_CACHE_DIR": job["cache"]}
    return run_in_fresh_process("train:compile_once", job, environment=environment, timeout_seconds=300)


def _paths() -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])}


def _measure(job: dict[str, Any], num_ranks: int, folder: Path, *, timeout_seconds: float) -> dict[str, Any]:
    """What one network's process found; where it did not come to its end, what it had kept until then."""
    whose = {"model": job["model"], "batch": job["batch"]}
    if num_ranks > 1:
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
        return {**whose, **found}
    environment = {**_paths(), "TORCHINDUCTOR_CACHE_DIR": job["cache"]}
    outcome = run_in_fresh_process("train:compare", job, environment=environment, timeout_seconds=timeout_seconds)
    kept = Path(job["so_far"])
    found = outcome.value if outcome.ok else json.loads(kept.read_text()) if kept.is_file() else {}
    if not outcome.ok:
        found["error"] = {"ending": outcome.ending, "words": _end(outcome)}
    elif job["device"] == "cpu":
        peaks = {who: measure_in_child("train:peak_memory", job, who) for who in ("ours", "by hand")}
        found["steps"]["as it is"] |= {"peak_memory_bytes": peaks, "peak_memory_ratio": _quotient(peaks)}
    return {**whose, **found}


def _end(outcome: Outcome) -> str:
    return "" if outcome.ok else outcome.last_words[-600:]


def prepare(job: dict[str, Any], models: list[str]) -> None:
    """Decode all photos once, for all networks."""
    from modelhound.settings import PrepareSettings
    from modelhound.verbs.prepare import run_prepare

    run_prepare(PrepareSettings(job["photos"], Path(job["prepared"]), models=tuple(models)))


def compile_once(job: dict[str, Any]) -> float:
    """Seconds of the first step, with everything that a later process will find on disk."""
    import torch

    from modelhound.training.accounting import make_laps
    from modelhound.training.feed import move

    bench = _lay_out(job, job["photos"])
    bench.stepper.network = torch.compile(bench.stepper.network)
    bench.learner.train()
    laps = make_laps(bench.device)
    laps.begin()
    batch = move(next(course_batches(bench, 1)), bench.device)
    started = seconds_now()
    bench.stepper.step(batch, laps)
    laps.samples()  # waits for the device
    return seconds_now() - started


def compare(job: dict[str, Any]) -> dict[str, Any]:
    """All comparisons that one process can make, in the order of their weight, while there is time."""
    import torch

    started = seconds_now()
    bench = _lay_out(job, job["prepared"])
    found: dict[str, Any] = {"steps": {}, "data": {}, "left_out": []}

    def keep() -> None:
        if bench.link.is_first:
            _keep(Path(job["so_far"]), found)

    found["steps"]["as it is"] = _compare_steps(bench, job)
    keep()
    if job["compile"]:
        bench.stepper.network = torch.compile(bench.stepper.network)
        found["steps"]["compiled"] = _compare_steps(bench, job)
        keep()
    for data in () if job["ratio_only"] else ("prepared", "photos"):
        if seconds_now() - started > job["seconds"]:
            found["left_out"].append(data)
            continue
        bench.course = _course(bench, job[data], job["device"])
        found["data"][data] = _shares(bench)
        keep()
    return found


def peak_memory(job: dict[str, Any], who: str) -> int:
    """Of this process, after a few steps of one contestant."""
    from modelhound.meter import Meter

    bench = _lay_out(job, job["prepared"])
    contestants = dict(zip(("ours", "by hand"), _contestants(bench, job), strict=True))
    contestants[who](course_batches(bench, MEMORY_STEPS + 1), 1, MEMORY_STEPS)
    return Meter("cpu").peak_memory_bytes


def _lay_out(job: dict[str, Any], data: str) -> Any:
    """A bench with one sort of images."""
    import torch

    from modelhound.compat import import_timm
    from modelhound.data import open_dataset
    from modelhound.settings import RecipeSettings
    from modelhound.training import set_up

    import_timm()
    torch.backends.cudnn.benchmark = True
    dataset = open_dataset(data)
    recipe = RecipeSettings(batch=job["batch"], augment="none", batchnorm="own")
    device = f"cuda:{torch.cuda.current_device()}" if job["device"] == "cuda" else "cpu"
    bench = set_up(_build(job), dataset, dataset.select(range(4)), recipe, device=device)
    bench.course = _course(bench, data, job["device"])
    return bench


def _build(job: dict[str, Any]) -> Any:
    from modelhound.features import build_network
    from modelhound.models import find_models
    from modelhound.settings import PLAIN

    (model,) = find_models([job["model"]])
    return build_network(model, None, PLAIN, seed=0)


def _course(bench: Any, data: str, device: str) -> Any:
    from modelhound.data import open_dataset

    course = dataclasses.replace(bench.course, dataset=open_dataset(data))
    return course if device == "cuda" else dataclasses.replace(course, workers=0)


Contestant = Callable[[Iterator[Any], int, int], float]
"""From batches, steps to warm up with and steps to time, to seconds per step."""


def _compare_steps(bench: Any, job: dict[str, Any]) -> dict[str, Any]:
    """Blocks of both in turns, fed by one loader."""
    device, num_warm = job["device"], bench.course.workers + 1
    num_rounds = job["rounds"]
    contestants = dict(zip(("ours", "by hand"), _contestants(bench, job), strict=True))
    most = 2 * num_rounds * (MOST_STEPS + 2) + 2 * (num_warm + 2) + 2 * (MEMORY_STEPS + 2) + 8
    batches = course_batches(bench, most)
    started = seconds_now()
    try:
        contestants["ours"](batches, num_warm, 1)
        first_seconds = seconds_now() - started
        contestants["by hand"](batches, num_warm, 1)
        step_seconds = bench.link.largest(contestants["ours"](batches, 1, 3))
        num_steps = int(max(LEAST_STEPS, min(MOST_STEPS, BLOCK_SECONDS[device] // step_seconds)))
        times: dict[str, list[float]] = {"ours": [], "by hand": []}
        for number in range(num_rounds):
            for name in sorted(contestants, reverse=bool(number % 2)):
                bench.link.barrier()
                times[name].append(contestants[name](batches, 2, num_steps))
        ratio, interval = _ratio(times["ours"], times["by hand"])
        found = {
            "ratio": ratio,
            "ratio_interval": interval,
            "seconds_per_step": times,
            "steps_per_block": num_steps,
            "first_steps_seconds": first_seconds,
        }
        return found | (_cuda_peaks(contestants, batches) if device == "cuda" else {})
    finally:
        batches.close()


def course_batches(bench: Any, count: int) -> Any:
    """So many batches of one loader, epoch after epoch."""
    course = bench.course
    positions: list[int] = []
    epoch = 0
    while len(positions) < count * course.batch:
        positions += course.positions(epoch).tolist()
        epoch += 1
    return course.stream(positions[: count * course.batch])


def _contestants(bench: Any, job: dict[str, Any]) -> tuple[Contestant, Contestant]:
    def ours(batches: Iterator[Any], num_warm: int, count: int) -> float:
        return _ours(bench, batches, num_warm, count)

    return ours, _by_hand(bench, job)


def _ours(bench: Any, batches: Iterator[Any], num_warm: int, count: int) -> float:
    """The loop of `hound train`: the same calls in the same order, with losses logged."""
    from modelhound.training.feed import move_batches
    from modelhound.training.loop import prepare_to_learn
    from modelhound.training.losses import LossLog

    prepare_to_learn(bench)
    bench.laps.begin()
    log = LossLog(bench.device)
    feed = move_batches(_held(batches), bench.device, bench.laps)

    def step() -> None:
        log.add(bench.stepper.step(next(feed), bench.laps))
        bench.laps.lap("logging")
        bench.laps.end_step()

    seconds = _time(step, bench.device, num_warm, count)
    log.finish()
    return seconds


def _held(batches: Iterator[Any]) -> Iterator[Any]:
    """The same, which nobody closes when a block is over."""
    while True:
        yield next(batches)


def _by_hand(bench: Any, job: dict[str, Any]) -> Contestant:
    """What one would write: no accounting, the loss looked at in the end."""
    import torch
    import torch.nn.functional as F

    device, bf16 = bench.device, bench.stepper.precision == "bf16"
    on_gpu = device != "cpu"
    trainable, network = bench.trainable, bench.stepper.network  # the same compiled code, or it would be compiled again
    if bench.link.num_ranks > 1:  # two wrappers of one network would hear each other's gradients
        trainable = _second(bench, job)
        network = torch.nn.parallel.DistributedDataParallel(
            trainable, device_ids=[device] if on_gpu else None, gradient_as_bucket_view=True
        )
    learning = [each for each in trainable.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(learning, lr=1e-6, fused=on_gpu)

    def run(batches: Iterator[Any], num_warm: int, count: int) -> float:
        trainable.train()

        def step() -> None:
            batch = next(batches)
            inputs = batch.inputs.to(device, non_blocking=True)
            if on_gpu:
                inputs = inputs.contiguous(memory_format=torch.channels_last)
            targets = batch.targets.to(device, non_blocking=True)
            with torch.autocast(device.partition(":")[0], dtype=torch.bfloat16, enabled=bf16):
                loss = F.cross_entropy(network(inputs).float(), targets)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

        return _time(step, device, num_warm, count)

    return run


def _second(bench: Any, job: dict[str, Any]) -> Any:
    """Another network just like the first."""
    from modelhound.training.feed import move
    from modelhound.training.trainable import make_trainable

    sample = move(next(course_batches(bench, 1)), bench.device).part(0, 2)
    outputs = bench.trainable.head.out_features
    return make_trainable(_build(job), sample.inputs, outputs, mode="full", device=bench.device, seed=0)


def _time(step: Callable[[], None], device: str, num_warm: int, count: int) -> float:
    """Seconds per step, after some that are not counted."""
    import torch

    for _ in range(num_warm):
        step()
    if device != "cpu":
        torch.cuda.synchronize()
    start = seconds_now()
    for _ in range(count):
        step()
    if device != "cpu":
        torch.cuda.synchronize()
    return (seconds_now() - start) / count


def _ratio(ours: list[float], by_hand: list[float]) -> tuple[float, list[float]]:
    mine, theirs = np.array(ours), np.array(by_hand)
    draws = np.random.default_rng(0).integers(0, len(mine), (2000, len(mine)))
    resampled = np.median(mine[draws], axis=1) / np.median(theirs[draws], axis=1)
    return float(np.median(mine) / np.median(theirs)), np.quantile(resampled, [0.025, 0.975]).tolist()


def _cuda_peaks(contestants: dict[str, Contestant], batches: Iterator[Any]) -> dict[str, Any]:
    """Both hold the weights and both optimisers' memory meanwhile."""
    import torch

    peaks = {}
    for name, contestant in contestants.items():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        contestant(batches, 1, MEMORY_STEPS)
        peaks[name] = torch.cuda.max_memory_allocated()
    return {"peak_memory_bytes": peaks, "peak_memory_ratio": _quotient(peaks)}


def _quotient(of_each: dict[str, int]) -> float:
    return of_each["ours"] / of_each["by hand"]


def _shares(bench: Any) -> dict[str, Any]:
    """What `hound train` would say, and the loop without loading as a share of the live one."""
    from modelhound.analysis.bounds import judge_blocks
    from modelhound.training.intervening import intervene

    verdict = judge_blocks(intervene(bench, budget_seconds=SHARE_SECONDS, num_rounds=SHARE_ROUNDS))
    without = min(gain.step_seconds for gain in verdict.gains)
    items = bench.course.batch * bench.link.num_ranks
    return {
        "items_per_second": items / verdict.step_seconds,
        "items_per_second_without_loading": items / without,
        "share_of_loop_without_loading": without / verdict.step_seconds,
        "workers": bench.course.workers,
        "verdict": verdict.sentence,
    }


def _shown(found: dict[str, Any]) -> str:
    lines = [f"{found['model']}, batch {found['batch']}"]
    for how, steps in found.get("steps", {}).items():
        low, high = steps["ratio_interval"]
        words = f"    {how}: {np.median(steps['seconds_per_step']['by hand']) * 1000:.1f} ms by hand, ours / by hand "
        words += f"{steps['ratio']:.3f} [{low:.3f}, {high:.3f}]"
        if "peak_memory_ratio" in steps:
            words += f", peak memory {steps['peak_memory_ratio']:.3f}"
        lines.append(f"{words}; first steps {steps['first_steps_seconds']:.1f} s")
    for name, share in found.get("data", {}).items():
        part = share["share_of_loop_without_loading"]
        lines.append(
            f"    {name}: {share['items_per_second']:.0f} items/s, {part:.0%} of the loop without loading; {share['verdict']}"
        )
    for name in ("left_out", "compiling", "error"):
        if found.get(name):
            lines.append(f"    {name}: {found[name]}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
