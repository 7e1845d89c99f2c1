"""One network's part of `benchmarks/train.py`, in a process of its own: our loop and one written by hand, side by side.

In:  a job of `train.py`: the network, its batch, folders of photos and of the same photos prepared, rounds, seconds
Out: seconds per step of both loops, their peak memory, and the live loop as a share of the one without loading
`get_ready` does whatever takes long and is not timed: cuDNN tries its kernels, torch compiles. `compare` finds it in the same
process later, while nothing else runs on the machine.
"""

import contextlib
import dataclasses
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from modelhound.meter import seconds_now

BLOCK_SECONDS = {"cpu": 1.5, "cuda": 0.3}
LEAST_STEPS, MOST_STEPS = 4, 40
MOST_SECONDS = 18.0  # of all blocks of a comparison on a GPU
LEAST_ROUNDS = 5
NUM_KEPT = 4
MEMORY_STEPS = 6
LIVE_ROUNDS = 5
SHARE_ROUNDS, SHARE_SECONDS = 4, 6.0
TURN_SECONDS = 60.0  # at most, that one network waits for another one's kernels

_ready: dict[str, "_Ready"] = {}


@dataclasses.dataclass(slots=True, kw_only=True)
class _Ready:
    """A network as it is and compiled, and a few batches in the host's memory."""

    bench: Any
    plain: Any
    compiled: Any
    kept: list[Any]

    @property
    def fastest(self) -> Any:
        return self.plain if self.compiled is None else self.compiled


def prepare(job: dict[str, Any], models: list[str]) -> None:
    """Decode all photos once, for all networks."""
    from modelhound.settings import PrepareSettings
    from modelhound.verbs.prepare import run_prepare

    run_prepare(PrepareSettings(job["photos"], Path(job["prepared"]), models=tuple(models)))


def get_ready(job: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the first steps as it is and compiled, of both loops; why it could not be compiled, where that is so."""
    import torch

    Path(job["process"]).write_text(str(os.getpid()))
    bench = _lay_out(job)
    kept = _load_some(bench)
    ready = _ready[job["model"]] = _Ready(bench=bench, plain=bench.stepper.network, compiled=None, kept=kept)
    seconds: dict[str, Any] = {}
    with _turn(job):  # one network at a time has the GPU, or cuDNN would take kernels for slow that had to share it
        seconds["as it is"] = _first_steps(ready, job)
    if job["compile"]:
        bench.stepper.network = torch.compile(ready.plain)
        try:
            seconds["compiled"] = _first_steps(ready, job)
            ready.compiled = bench.stepper.network
        except Exception as error:  # measured as it is, then
            seconds["not compiled"] = _in_words(error)
    return seconds


def compare(job: dict[str, Any]) -> dict[str, Any]:
    """All comparisons, in the order of their weight, while there is time."""
    started = seconds_now()
    if job["model"] not in _ready:
        get_ready(job)
    ready = _ready[job["model"]]
    bench = ready.bench
    found: dict[str, Any] = {"precision": bench.stepper.precision, "steps": {}, "data": {}, "left_out": []}

    def steps(name: str, network: Any, *, live: bool) -> None:
        bench.stepper.network = network
        found["steps"][name] = _compare_steps(ready, job, live=live)

    def share(data: str) -> None:
        bench.stepper.network = ready.fastest
        bench.course = _course(bench, job[data], job)
        found["data"][data] = _shares(bench)

    work: list[tuple[str, Callable[[], None]]] = [("as it is", lambda: steps("as it is", ready.plain, live=False))]
    if ready.compiled is not None:
        work.append(("compiled", lambda: steps("compiled", ready.compiled, live=False)))
    if not job["ratio_only"]:
        work += [("prepared", lambda: share("prepared")), ("photos", lambda: share("photos"))]
    work.append(("with a loader", lambda: _with_loader(ready, job, steps)))
    for name, do in work:
        if found["steps"] and seconds_now() - started > job["seconds"]:
            found["left_out"].append(name)
            continue
        try:
            do()
        except Exception as error:
            if bench.link.num_ranks > 1:  # the others wait
                raise
            found.setdefault("errors", {})[name] = _in_words(error)
        if bench.link.is_first:
            Path(job["so_far"]).write_text(json.dumps(found, indent=1))
    return found


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:600]


def peak_memory(job: dict[str, Any], who: str) -> int:
    """Of this process, after a few steps of one contestant."""
    from modelhound.meter import peak_bytes

    bench = _lay_out(job)
    kept = _load_some(bench)
    ready = _Ready(bench=bench, plain=bench.stepper.network, compiled=None, kept=kept)
    _contestants(ready, job)[who](itertools.cycle(kept), 1, MEMORY_STEPS)
    return peak_bytes()


def _lay_out(job: dict[str, Any]) -> Any:
    import torch

    from modelhound.compat import import_timm
    from modelhound.data import open_dataset
    from modelhound.settings import RecipeSettings
    from modelhound.training import set_up

    import_timm()
    torch.backends.cudnn.benchmark = True
    dataset = open_dataset(job["photos"])
    recipe = RecipeSettings(batch=job["batch"], augment="none", batchnorm="own")
    device = f"cuda:{torch.cuda.current_device()}" if job["device"] == "cuda" else "cpu"
    return set_up(_build(job), dataset, dataset.select(range(4)), recipe, device=device)


def _build(job: dict[str, Any]) -> Any:
    from modelhound.features import build_network
    from modelhound.models import find_models
    from modelhound.settings import PLAIN

    (model,) = find_models([job["model"]])
    return build_network(model, None, PLAIN, seed=0)


def _load_some(bench: Any) -> list[Any]:
    course = dataclasses.replace(bench.course, workers=0)
    return list(course.stream(course.positions(0)[: NUM_KEPT * course.batch].tolist()))


@contextlib.contextmanager
def _turn(job: dict[str, Any]) -> Iterator[None]:
    """Wait for the network before, and let the next one have its turn, whatever happens."""
    import time

    before = Path(job["turn_after"]) if job.get("turn_after") else None
    started = seconds_now()
    while before is not None and not before.exists() and seconds_now() - started < TURN_SECONDS:
        time.sleep(0.1)
    try:
        yield
    finally:
        if job.get("turn"):
            Path(job["turn"]).touch()


def _first_steps(ready: _Ready, job: dict[str, Any]) -> float:
    started = seconds_now()
    for contestant in _contestants(ready, job).values():
        contestant(itertools.cycle(ready.kept), 2, 1)
    return seconds_now() - started


def _with_loader(ready: _Ready, job: dict[str, Any], steps: Callable[..., None]) -> None:
    ready.bench.course = _course(ready.bench, job["prepared"], job)
    steps("with a loader", ready.fastest, live=True)


def _course(bench: Any, data: str, job: dict[str, Any]) -> Any:
    """On a CPU without processes of its own, which would compete for the cores."""
    from modelhound.data import open_dataset

    course = dataclasses.replace(bench.course, dataset=open_dataset(data))
    return course if job["device"] == "cuda" else dataclasses.replace(course, workers=0)


Contestant = Callable[[Iterator[Any], int, int], float]
"""From batches, steps to warm up with and steps to time, to seconds per step."""


def _compare_steps(ready: _Ready, job: dict[str, Any], *, live: bool) -> dict[str, Any]:
    """Blocks of both in turns, from one source of batches: a few of them again and again, or a live loader."""
    bench, device = ready.bench, job["device"]
    contestants = _contestants(ready, job)
    num_rounds = min(job["rounds"], LIVE_ROUNDS) if live else job["rounds"]
    num_warm = bench.course.workers + 1 if live else 2
    most = 2 * num_rounds * (MOST_STEPS + 2) + 4 * (num_warm + 4)
    batches = course_batches(bench, most) if live else itertools.cycle(ready.kept)
    try:
        for contestant in contestants.values():
            contestant(batches, num_warm, 1)
        step_seconds = bench.link.largest(contestants["ours"](batches, 1, 3))
        num_steps = int(max(LEAST_STEPS, min(MOST_STEPS, BLOCK_SECONDS[device] // step_seconds)))
        if device == "cuda":
            affordable = int(MOST_SECONDS / (2 * (num_steps + 2) * step_seconds))
            num_rounds = max(LEAST_ROUNDS, min(num_rounds, affordable))
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
        }
        return found | (_cuda_peaks(contestants, batches) if device == "cuda" and not live else {})
    finally:
        close = getattr(batches, "close", None)
        if close is not None:
            close()


def course_batches(bench: Any, count: int) -> Any:
    """So many batches of one loader, epoch after epoch."""
    course = bench.course
    positions: list[int] = []
    epoch = 0
    while len(positions) < count * course.batch:
        positions += course.positions(epoch).tolist()
        epoch += 1
    return course.stream(positions[: count * course.batch])


def _contestants(ready: _Ready, job: dict[str, Any]) -> dict[str, Contestant]:
    def ours(batches: Iterator[Any], num_warm: int, count: int) -> float:
        return _ours(ready.bench, batches, num_warm, count)

    return {"ours": ours, "by hand": _by_hand(ready, job)}


def _ours(bench: Any, batches: Iterator[Any], num_warm: int, count: int) -> float:
    """The loop of `hound train`: the same calls in the same order, with losses logged."""
    from modelhound.training.feed import move_batches
    from modelhound.training.loop import prepare_to_learn
    from modelhound.training.losses import LossLog

    prepare_to_learn(bench)
    bench.laps.begin()
    log = LossLog(bench.device, otherwise="nothing is compared with that")
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


def _by_hand(ready: _Ready, job: dict[str, Any]) -> Contestant:
    """What one would write: no accounting, the loss looked at in the end."""
    import torch
    import torch.nn.functional as F

    bench = ready.bench
    device, bf16 = bench.device, bench.stepper.precision == "bf16"
    on_gpu = device != "cpu"
    trainable, network = bench.trainable, bench.stepper.network  # the same compiled code, or it would be compiled again
    if bench.link.num_ranks > 1:  # two wrappers of one network would hear each other's gradients
        trainable = _second(ready, job)
        network = torch.nn.parallel.DistributedDataParallel(
            trainable, device_ids=[device] if on_gpu else None, gradient_as_bucket_view=True
        )
    learning = [each for each in trainable.parameters() if each.requires_grad]
    optimiser = torch.optim.AdamW(learning, lr=1e-6, fused=on_gpu)

    def run(batches: Iterator[Any], num_warm: int, count: int) -> float:
        trainable.train()

        def step() -> None:
            batch = next(batches)
            inputs = batch.inputs_on(device)
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


def _second(ready: _Ready, job: dict[str, Any]) -> Any:
    """Another network just like the first."""
    from modelhound.training.feed import move
    from modelhound.training.trainable import make_trainable

    bench = ready.bench
    sample = move(ready.kept[0], bench.device).part(0, 2)
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
    """The median of the rounds' ratios: what slows a whole round down makes no difference."""
    ratios = np.array(ours) / np.array(by_hand)
    draws = np.random.default_rng(0).integers(0, len(ratios), (2000, len(ratios)))
    return float(np.median(ratios)), np.quantile(np.median(ratios[draws], axis=1), [0.025, 0.975]).tolist()


def _cuda_peaks(contestants: dict[str, Contestant], batches: Iterator[Any]) -> dict[str, Any]:
    """Both hold the weights and both optimisers' memory meanwhile."""
    import torch

    peaks = {}
    for name, contestant in contestants.items():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        contestant(batches, 1, MEMORY_STEPS)
        peaks[name] = torch.cuda.max_memory_allocated()
    return {"peak_memory_bytes": peaks, "peak_memory_ratio": peaks["ours"] / peaks["by hand"]}


def _shares(bench: Any) -> dict[str, Any]:
    """What `hound train` would say, and the loop without loading as a share of the live one."""
    from modelhound.analysis.bounds import judge_blocks
    from modelhound.training.intervening import intervene

    measured = intervene(bench, budget_seconds=SHARE_SECONDS, num_rounds=SHARE_ROUNDS)
    verdict = judge_blocks(measured)
    without = min(gain.step_seconds for gain in verdict.gains)
    items = bench.course.batch * bench.link.num_ranks
    return {
        "items_per_second": items / verdict.step_seconds,
        "items_per_second_without_loading": items / without,
        "share_of_loop_without_loading": without / verdict.step_seconds,
        "workers": bench.course.workers,
        "verdict": verdict.sentence,
        "advice": verdict.advice,
        "seconds_per_step": {
            condition: [float(np.mean(block.seconds)) for block in measured.blocks if block.condition == condition]
            for condition in dict.fromkeys(block.condition for block in measured.blocks)
        },
    }
