"""What torch's profiler sees of a few steps.

In:  a Bench, how many steps, a file for the trace
Out: a trace that Perfetto (ui.perfetto.dev) opens, and a table of the operators that take most time themselves, on the device
     or on the host
Nothing here concludes. The bench is left as it was.
"""

import itertools
import os
import tempfile
import warnings
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from modelhound.meter.laps import make_laps
from modelhound.records import Operator, OperatorsProfiled
from modelhound.store import write_file
from modelhound.training.bench import Bench
from modelhound.training.feed import move_batches
from modelhound.training.intervening import left_as_it_was
from modelhound.training.layout import tuned_convolutions
from modelhound.training.loop import prepare_to_learn

__all__ = ["trace_steps"]

_NUM_WARM = 2
_OUR_MARKS = "hound: "  # in the trace, so that one finds one's way; no operators
_MOST_OPERATORS = 30  # by each of two clocks


def trace_steps(bench: Bench, num_steps: int, path: Path, *, model: str = "") -> OperatorsProfiled:
    """Run a few live steps under the profiler."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes to the terminal
    on_gpu = bench.device.startswith("cuda")
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if on_gpu else [])
    laps = make_laps(bench.device)
    with left_as_it_was(bench), tuned_convolutions():
        prepare_to_learn(bench)
        positions = itertools.islice(
            itertools.cycle(bench.course.positions(0).tolist()), (_NUM_WARM + num_steps) * bench.course.batch
        )
        feed = move_batches(bench.course.stream(list(positions)), bench.device, laps)
        laps.begin()
        for _ in range(_NUM_WARM):
            bench.stepper.step(next(feed), laps)
        # some releases of torch warn of the profiler's usual ways, which must not end a run where warnings are errors
        with warnings.catch_warnings(action="ignore"), profile(activities=activities) as profiler:
            for number in range(num_steps):
                with record_function(f"{_OUR_MARKS}step {number}"):
                    with record_function(f"{_OUR_MARKS}wait for data"):
                        batch = next(feed)
                    bench.stepper.step(batch, laps)
            if on_gpu:
                torch.cuda.synchronize(bench.device)
        feed.close()  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(written))
        write_file(path, written.read_bytes())
    return OperatorsProfiled(
        model=model,
        num_ranks=bench.link.num_ranks,
        rank=bench.link.rank,
        num_steps=num_steps,
        trace=str(path),
        operators=_operators(profiler, on_gpu),
    )


def _operators(profiler: profile, on_gpu: bool) -> tuple[Operator, ...]:
    rows = [
        Operator(
            name=str(each.key),
            calls=int(each.count),
            cpu_seconds=each.self_cpu_time_total / 1e6,
            device_seconds=each.self_device_time_total / 1e6 if on_gpu else 0.0,
        )
        for each in profiler.key_averages()
        if not str(each.key).startswith(_OUR_MARKS)
    ]
    by_host = sorted(rows, key=lambda row: -row.cpu_seconds)
    by_device = sorted(rows, key=lambda row: -row.device_seconds) if on_gpu else by_host
    rest = [row for row in by_host[:_MOST_OPERATORS] if row not in by_device[:_MOST_OPERATORS]]
    return tuple(by_device[:_MOST_OPERATORS] + rest)
