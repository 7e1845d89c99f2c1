"""Training with all accounting on against a loop written by hand; and training as a share of the loop without any data loading.

    python benchmarks/train.py [--device cpu|cuda] [--models NAME…] [--ranks N] [--items N] [--rounds N] [--no-compile]
                               [--ratio-only] [--seconds N] [--json]

Step time: the same network, batches and optimiser; a block of steps of ours and one of the hand-written loop in turns, from the
same few batches in the host's memory, so that neither waits for a loader, in one process (with --ranks N, in N processes under
DistributedDataParallel). The ratio is the median over rounds, with a paired bootstrap; last, the same with one live loader of
prepared images for both. Peak memory: of a GPU in the same process, of a CPU in one process each, of fixed length.

Share of the loop without loading: `training.intervening`'s blocks, on JPEGs of 500 x 375 pixels as they are and on the same
images prepared (decoded once), with the verdict that `hound train` would print.

On a GPU in bf16 and channels-last, as it is and compiled. All networks get ready at once, each in a process of its own: cuDNN
tries its kernels, torch compiles. Nothing is timed meanwhile. Then they are timed one after the other in these processes, while
the others sleep; one that is not ready by then is stopped and goes on when the others are done. What is measured is written to
the folder $OUT, where that is set, as it comes.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from children import measure_in_child
from modelhound.launch import Outcome, Worker, run_on_ranks
from modelhound.meter import count_cores, describe_machine, seconds_now
from modelhound.records import to_plain

CPU_MODELS = {"zoo:resnet-shapes": 32, "timm:efficientnet_b0": 8}
CUDA_MODELS = {
    "timm:efficientnet_b0": 128,
    "timm:resnet50": 128,
    "timm:efficientnet_b3": 128,
    "timm:efficientnet_b5": 64,
}
"""With the batch each is trained in, the most telling first."""

NUM_ROUNDS = {"cpu": 9, "cuda": 15}
NUM_ITEMS = {"cpu": 128, "cuda": 1280}
READY_SHARE = 0.52  # of all seconds: whoever is not ready by then waits until the others have been timed
PATIENCE_SECONDS = 15.0
LEAST_SECONDS = 15.0  # that are worth beginning with a network

Ready = concurrent.futures.Future[Outcome]


def main() -> None:
    asked = _parse()
    started = seconds_now()
    known = CUDA_MODELS if asked.device == "cuda" else CPU_MODELS
    models = list(asked.models or known)
    document: dict[str, Any] = {"device": asked.device, "ranks": asked.ranks, "machine": to_plain(describe_machine())}
    document["models"] = results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _draw_photos(folder / "photos", asked.items or NUM_ITEMS[asked.device])
        jobs = [_job(model, known.get(model, 32), folder, asked) for model in models]
        work = _in_turn(jobs, asked.ranks, folder) if asked.device == "cpu" else _at_once(jobs, asked, started)
        for found in work:
            results.append(found)
            print(_shown(found), file=sys.stderr if asked.json else sys.stdout, flush=True)
            (_keeping_folder(folder) / "train.json").write_text(json.dumps(document, indent=1))
        document["seconds"] = seconds_now() - started
        (_keeping_folder(folder) / "train.json").write_text(json.dumps(document, indent=1))
    if asked.json:
        print(json.dumps(document, indent=1))


def _parse() -> argparse.Namespace:
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
    return parser.parse_args()


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


def _job(model: str, batch: int, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    name = model.replace(":", "-").replace("/", "-")
    return {
        "model": model,
        "batch": batch,
        "photos": str(folder / "photos"),
        "prepared": str(folder / "prepared"),
        "device": asked.device,
        "rounds": asked.rounds or NUM_ROUNDS[asked.device],
        "ratio_only": asked.ratio_only,
        "compile": asked.device == "cuda" and not asked.no_compile,
        "seconds": asked.seconds,
        "process": str(folder / f"{name}.process"),
        "so_far": str(_keeping_folder(folder) / f"train-{name}.json"),
    }


def _keeping_folder(folder: Path) -> Path:
    return Path(os.environ.get("OUT") or folder)


def _in_turn(jobs: list[dict[str, Any]], num_ranks: int, folder: Path) -> Iterator[dict[str, Any]]:
    """One network after the other."""
    measure_in_child("train_contest:prepare", jobs[0], [job["model"] for job in jobs])
    for job in jobs:
        whose = {"model": job["model"], "batch": job["batch"]}
        if num_ranks > 1:
            yield {**whose, **_on_ranks(job, num_ranks, folder)}
            continue
        found = measure_in_child("train_contest:compare", job, timeout_seconds=600)
        peaks = {who: measure_in_child("train_contest:peak_memory", job, who) for who in ("ours", "by hand")}
        memory = {"peak_memory_bytes": peaks, "peak_memory_ratio": peaks["ours"] / peaks["by hand"]}
        found["steps"]["as it is"] |= memory
        yield {**whose, **found}


def _on_ranks(job: dict[str, Any], num_ranks: int, folder: Path) -> dict[str, Any]:
    sys.path.insert(0, str(Path(__file__).parent))
    found: dict[str, Any] = run_on_ranks(
        "train_contest:compare",
        job,
        num_ranks=num_ranks,
        folder=folder / "ranks",
        device=job["device"],
        environment={"OMP_NUM_THREADS": str(max(1, count_cores() // num_ranks))},
    )[0]
    return found


def _at_once(jobs: list[dict[str, Any]], asked: argparse.Namespace, started: float) -> Iterator[dict[str, Any]]:
    """All networks get ready beside each other; those that are go first, one at a time."""
    _deal_turns(jobs)
    with contextlib.ExitStack() as stack:
        workers = {job["model"]: stack.enter_context(Worker(environment=_environment(len(jobs)))) for job in jobs}
        preparing = _begin(measure_in_child, "train_contest:prepare", jobs[0], [job["model"] for job in jobs])
        ready: dict[str, Ready] = {
            job["model"]: _begin(
                workers[job["model"]].call, "train_contest:get_ready", job, timeout_seconds=asked.seconds
            )
            for job in jobs
        }
        waiting = list(jobs)
        for until in (READY_SHARE * asked.seconds, asked.seconds - 2 * LEAST_SECONDS):
            for job in waiting:
                _pause(job, go_on=True)
            concurrent.futures.wait(
                [preparing, *(ready[job["model"]] for job in waiting)], timeout=until - (seconds_now() - started)
            )
            in_time = [job for job in waiting if ready[job["model"]].done()]
            waiting = [job for job in waiting if job not in in_time]
            for job in waiting:
                _pause(job)
            for number, job in enumerate(in_time):
                left = asked.seconds - (seconds_now() - started)
                # the first ones get no more than their share, so that the last has one too
                job["seconds"] = max(LEAST_SECONDS, left / (len(in_time) + len(waiting) - number))
                worker = workers[job["model"]]
                yield _timed(job, worker, ready[job["model"]].result(), left)
                worker.retire()
        for job in waiting:
            yield {"model": job["model"], "batch": job["batch"], "error": {"ending": "not ready in time", "words": ""}}


def _begin(work: Callable[..., Any], *arguments: Any, **options: Any) -> "concurrent.futures.Future[Any]":
    """In a thread that nobody waits for in the end, unlike those of a pool."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(work(*arguments, **options))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _deal_turns(jobs: list[dict[str, Any]]) -> None:
    """The last of the list takes longest to compile, so it has the GPU first."""
    before = None
    for job in reversed(jobs):
        job["turn_after"], job["turn"] = before, f"{job['process']}.tuned"
        before = job["turn"]


def _environment(num_networks: int) -> dict[str, str]:
    here = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    return {"PYTHONPATH": here, "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, count_cores() // num_networks))}


def _pause(job: dict[str, Any], *, go_on: bool = False) -> None:
    """Stop a network's process and whatever it has started, or let them go on."""
    with contextlib.suppress(OSError, ValueError, psutil.Error):
        process = psutil.Process(int(Path(job["process"]).read_text()))
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                each.resume() if go_on else each.suspend()


def _timed(job: dict[str, Any], worker: Worker, outcome: Outcome, left_seconds: float) -> dict[str, Any]:
    """What one network's process found; where it did not come to its end, what it had kept until then."""
    found: dict[str, Any] = {"model": job["model"], "batch": job["batch"]}
    kept = Path(job["so_far"])
    if outcome.ok:
        found["first_steps_seconds"] = outcome.value
        left = max(LEAST_SECONDS, left_seconds)
        outcome = worker.call("train_contest:compare", job, timeout_seconds=left + PATIENCE_SECONDS)
    if outcome.ok:
        return {**found, **outcome.value}
    words = {"ending": outcome.ending, "words": outcome.last_words[-600:]}
    return {**found, **(json.loads(kept.read_text()) if kept.is_file() else {}), "error": words}


def _shown(found: dict[str, Any]) -> str:
    lines = [f"{found['model']}, batch {found['batch']}, {found.get('precision', '')}"]
    for how, steps in found.get("steps", {}).items():
        low, high = steps["ratio_interval"]
        words = f"    {how}: {np.median(steps['seconds_per_step']['by hand']) * 1000:.1f} ms by hand, ours / by hand "
        words += f"{steps['ratio']:.3f} [{low:.3f}, {high:.3f}]"
        if "peak_memory_ratio" in steps:
            words += f", peak memory {steps['peak_memory_ratio']:.3f}"
        lines.append(words)
    for name, share in found.get("data", {}).items():
        part = share["share_of_loop_without_loading"]
        lines.append(
            f"    {name}, {share['workers']} workers: {share['items_per_second']:.0f} items/s, {part:.0%} of the loop "
            f"without loading; {share['verdict']}"
        )
    for name in ("first_steps_seconds", "left_out", "errors", "error"):
        if found.get(name):
            lines.append(f"    {name.replace('_', ' ')}: {found[name]}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
