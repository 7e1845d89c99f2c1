"""What `hound profile` and `hound breakeven` find on this machine, how long they take, and what keeping accounts costs.

    python benchmarks/profiling.py --runs FOLDER [--device cpu|cuda] [--only profile,overhead,breakeven] [--seconds N] [--quick]
    python benchmarks/profiling.py --runs FOLDER --write benchmarks/results --hardware epyc2_202611 [--note TEXT]

Measuring leaves run folders and summary.json below --runs; --write makes the analyses with their charts from them, here or on
another machine. Photographs of 500 x 375 are made in a temporary folder.
  profile    all models of the research with all parts and joints on raw photographs and on texts; whole ones on prepared items
  overhead   the loop of `hound profile` against the same loop without a clock, in turns; what one phase costs that is empty
  breakeven  fine-tuning against searching: on a GPU ResNet-50 and ViT-L/16 as published, on a CPU two networks of the zoo
After --seconds, what is not finished is given up; what is finished stays.
"""

import argparse
import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from decoding import NUM_PICTURES, QUALITY, SIZE, encode, make_photo, write
from engine_pools import make_models
from modelhound.analysis.bottlenecks import find_bottlenecks, repeat_ratio
from modelhound.analysis.breakeven_findings import Asked, Timed, find_breakeven
from modelhound.data import open_dataset
from modelhound.meter import Meter, describe_machine, resolve_device, seconds_now
from modelhound.models import find_models
from modelhound.models.parts import running
from modelhound.profiling.assembling import assemble, move
from modelhound.profiling.benches import prepare_bench
from modelhound.profiling.configurations import configurations_of
from modelhound.profiling.feeding import decoded_meals
from modelhound.profiling.jobs import Stage, profile_configuration
from modelhound.profiling.staging import open_stage
from modelhound.profiling.weight_files import read_some
from modelhound.records import (
    ConfigurationProfiled,
    Failure,
    FeaturesTimed,
    Progress,
    RunStarted,
    SearchTimed,
    TrainingTimed,
    Watch,
    to_plain,
)
from modelhound.settings import PROFILE_MODELS, BreakevenSettings, ProfileSettings
from modelhound.store import Run, read_run
from modelhound.verbs.breakeven import run_breakeven
from modelhound.verbs.prepare import prepare
from modelhound.verbs.profile import run_profile

PARTS = ("profile", "overhead", "breakeven")
NUM_ROUNDS = {"cpu": 15, "cuda": 5}
NUM_EMPTY = 2000
ITEM_COUNTS = (100, 1000, 10000)
PHOTOS, PREPARED, TEXTS = "photos", "prepared", "sms"
PUBLISHED_MODELS = ("resnet50", "vit_large_patch16_224")
POOL = (
    *("resnet18", "resnet34", "resnet50", "efficientnet_b0", "mobilenetv3_large_100"),
    *("vit_small_patch16_224", "vit_base_patch16_224", "convnext_tiny"),
)
ASSUMED = {"epochs": (20.0, 20.0), "items": (40000.0, 60000.0), "models": (100.0, 100.0), "model": (1.5, 1.5)}
PRICE_PER_HOUR, WATTS = {"cpu": 0.10, "cuda": 4.0}, {"cpu": 30.0, "cuda": 700.0}


class EnoughError(BaseException):
    """The time is over; no handler of a failed model may take it for one."""


class Clock:
    """Tells on stderr what goes on, and ends it when the time is over."""

    def __init__(self, seconds: float | None) -> None:
        self._begin, self._limit, self._said = seconds_now(), seconds, -1.0

    @property
    def spent(self) -> float:
        return seconds_now() - self._begin

    def watch(self, progress: Progress) -> None:
        if self._limit is not None and self.spent > self._limit:
            raise EnoughError
        if progress.task.endswith("%") and self.spent - self._said >= 1:
            self._said = self.spent
            print(
                f"{self.spent:6.1f} s  {progress.task} {progress.done} {progress.detail}", file=sys.stderr, flush=True
            )


def measure(runs: Path, device: str, parts: Sequence[str], clock: Clock, *, quick: bool) -> dict[str, Any]:
    """Run what was asked for in a temporary folder, so that no name in any record is a path of this machine."""
    found: dict[str, Any] = {"device": device, "machine": to_plain(describe_machine())}
    steps: dict[str, Callable[[], dict[str, Any]]] = {
        "profile": lambda: run_profiles(runs, device, clock, quick=quick),
        "overhead": lambda: measure_overhead(device, clock.watch),
        "breakeven": lambda: run_comparison(runs, device, clock, quick=quick),
    }
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        pictures = [encode(make_photo(SIZE, seed), quality=QUALITY) for seed in range(NUM_PICTURES)]
        write(Path(PHOTOS), pictures, 400 if device == "cpu" else 4000)
        try:
            for part in parts:
                started = clock.spent
                found[part] = steps[part]()
                found[part]["seconds"] = clock.spent - started
                write_summary(runs, found)
        except EnoughError:
            print(f"{clock.spent:6.1f} s  the time is over", file=sys.stderr)
            found["given_up"] = clock.spent
            write_summary(runs, found)
    return found


def write_summary(runs: Path, found: dict[str, Any]) -> None:
    runs.mkdir(parents=True, exist_ok=True)
    (runs / "summary.json").write_text(json.dumps(found, indent=1))


def run_profiles(runs: Path, device: str, clock: Clock, *, quick: bool) -> dict[str, Any]:
    """Last layers and joint models do not care how their items were read: prepared ones are run with whole models only."""
    usual: dict[str, Any] = {"device": (device,), "quick": quick, "items": tuple(map(str, ITEM_COUNTS))}
    seconds = {}
    started = clock.spent
    for data in (PHOTOS, TEXTS, PREPARED):
        if data == PREPARED:
            prepare(PHOTOS, PREPARED, models=PROFILE_MODELS["image"], watch=clock.watch)
            seconds["making prepared items"], started = clock.spent - started, clock.spent
        less = {"parts": ("full",), "joint": ("none",)} if data == PREPARED else {}
        run_profile(ProfileSettings(data, run=runs / f"profile_{data}", **usual, **less), watch=clock.watch)
        seconds[data], started = clock.spent - started, clock.spent
    return {"each": seconds}


def measure_overhead(device: str, watch: Watch) -> dict[str, Any]:
    """The fastest round of both loops and their ratio; the share that empty phases would have."""
    num_rounds = NUM_ROUNDS[device.partition(":")[0]]
    cheap: dict[str, Any] = {"classes": ("2",), "scorers": ("ridge",), "repeats": 1}
    settings = ProfileSettings(
        PHOTOS, parts=("full",), joint=("none",), batches=12, warmup=2, device=(device,), **cheap
    )
    dataset = open_dataset(PHOTOS, limit=12 * 64)
    rows: dict[str, Any] = {}
    for name in ("timm:resnet18", "timm:mobilenetv3_large_100"):
        (model,) = find_models([name])
        with tempfile.TemporaryDirectory() as work:
            bench = prepare_bench(model, settings, Path(work))
            (full,), _ = configurations_of(bench, settings)
            spent: dict[str, list[float]] = {"timed": [], "bare": []}
            with open_stage(bench, dataset, settings, [full], stamp="", device=device, folder=Path(work)) as stage:
                for done in range(num_rounds):
                    watch(Progress(task="overhead, %", done=100 * done // num_rounds, total=100, detail=name))
                    spent["bare"].append(_bare_loop(stage))
                    record = profile_configuration(full, stage)
                    spent["timed"].append(
                        sum(map(record.seconds_of, ("wait for data", "data to device", "forward")))
                        + record.wall_seconds
                        - sum(each.total for each in record.phases)
                    )
            num_phases = 3 * stage.workload.num_batches + 1
        rows[name] = {
            "ratio": min(spent["timed"]) / min(spent["bare"]),
            "share_of_empty_phases": num_phases * _empty_phase(device) / min(spent["timed"]),
            **spent,
        }
    return rows


def _bare_loop(stage: Stage) -> float:
    """What `profile_configuration` times, with one phase around all of it."""
    bench = stage.bench
    names = bench.layers.tensors(0, bench.num_parts)
    network = assemble(bench.source, read_some(bench.files[0], names), bench.settings, seed=0)
    layout = bench.layout(stage.device)
    move(network, names, device=stage.device, dtype=stage.dtype, layout=layout)
    meter = Meter(stage.device)
    with meter.phase("loop"), torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        rows = []
        with running(network, bench.layers.anatomy, 0, bench.num_parts) as run:
            for meal in decoded_meals(
                stage.dataset, bench.form, batch=stage.workload.batch, workers=None, device=stage.device
            ):
                inputs, value = meal.serve(stage.device, stage.dtype, layout)
                rows.append(run(inputs, value).float())
    return meter.samples[0].total


def _empty_phase(device: str) -> float:
    meter = Meter(device)
    with meter.phase("all"):
        for _ in range(NUM_EMPTY):
            with meter.phase("empty"):
                pass
    return sum(each.total for each in meter.samples) / NUM_EMPTY


def run_comparison(runs: Path, device: str, clock: Clock, *, quick: bool) -> dict[str, Any]:
    """In fp32 as published where there is a GPU, with weights in files; on a CPU with networks of the zoo."""
    own: dict[str, Any] = {"data": "fashion"} if device == "cpu" else as_published()
    own["sizes"] = ("100", "1000") if quick else ("100", "1000", "4000")
    run_breakeven(BreakevenSettings(**own, device=device, run=runs / "breakeven"), watch=clock.watch)
    return {}


def as_published() -> dict[str, Any]:
    """What the research timed, with more models to search over; its weights are random, but lie in files."""
    pool = {"architectures": [*PUBLISHED_MODELS, *POOL], "models": len(PUBLISHED_MODELS) + len(POOL), "differ": 1.0}
    references = make_models("models", pool)
    return {
        "data": PHOTOS,
        "models": tuple(references[: len(PUBLISHED_MODELS)]),
        "pool": tuple(references[len(PUBLISHED_MODELS) :]),
        "counts": ("1", "2", "4", "8"),
        "batch": 64,
        "measured_epochs": 3,
        "precision": "fp32",
    }


def write_analyses(runs: Path, out: Path, hardware: str, notes: Sequence[str]) -> None:
    """Markdown and charts from the run folders that are there."""
    profiles = [read_run(each) for each in sorted(runs.glob("profile_*"))]
    if profiles:
        print(write_profile(profiles, out / f"profile_{hardware}", notes))
    if (runs / "breakeven").is_dir():
        print(write_breakeven(read_run(runs / "breakeven"), out / f"breakeven_{hardware}", notes))


def write_profile(found: Sequence[Run], folder: Path, notes: Sequence[str]) -> Path:
    from modelhound.report.analysis_text import profile_analysis, write_analysis
    from modelhound.report.profile_charts import profile_charts

    order = {PHOTOS: 0, PREPARED: 1, TEXTS: 2}
    records = sorted(_all(found, ConfigurationProfiled), key=lambda each: (order[each.data], *_place(each)))
    findings = find_bottlenecks(records)
    charts = profile_charts(records, findings, item_counts=ITEM_COUNTS)
    text = profile_analysis(
        records,
        findings,
        charts,
        failures=list(_all(found, Failure)),
        notes=(*dict.fromkeys(note for record in records for note in record.notes), *notes),
        machine=next(_all(found, RunStarted)).machine,
    )
    return write_analysis(text, charts, folder)


def _place(record: ConfigurationProfiled) -> tuple[int, int, str]:
    """In the order in which models are named and configurations asked for."""
    models = [*PROFILE_MODELS["image"], *PROFILE_MODELS["text"]]
    names = ["full", "last 50%", "last 25%", "last 3", "last 1", "joint 50%", "joint 3", "apart 2"]
    return models.index(record.model), names.index(record.configuration), record.device


def write_breakeven(found: Run, folder: Path, notes: Sequence[str]) -> Path:
    from modelhound.report.analysis_text import write_analysis
    from modelhound.report.breakeven_charts import breakeven_charts
    from modelhound.report.breakeven_text import breakeven_analysis

    started = found.of(RunStarted)[0]
    kind = started.device.partition(":")[0]
    timed = Timed(
        trainings=[_by_architecture(each) for each in found.of(TrainingTimed)],
        features=[_by_architecture(each) for each in found.of(FeaturesTimed)],
        searches=found.of(SearchTimed),
    )
    asked = Asked(epochs=10, assume=ASSUMED, price_per_hour=PRICE_PER_HOUR[kind], watts=WATTS[kind])
    findings = find_breakeven(timed, asked)
    charts = breakeven_charts(findings)
    text = breakeven_analysis(
        findings,
        charts,
        data=str(found.settings["data"]),
        device=started.device,
        failures=found.of(Failure),
        notes=notes,
        machine=started.machine,
    )
    return write_analysis(text, charts, folder)


def _by_architecture(record: Any) -> Any:
    """file:models/00-resnet50 is a name of this script's own making."""
    return msgspec.structs.replace(record, model=re.sub(r"^file:models/\d+-", "", record.model))


def _all(found: Sequence[Run], kind: type[Any]) -> Iterator[Any]:
    return (record for run in found for record in run.of(kind))


def summarise(runs: Path, found: dict[str, Any]) -> None:
    """What a person wants to see at once."""
    records = list(_all([read_run(each) for each in sorted(runs.glob("profile_*"))], ConfigurationProfiled))
    for part in PARTS:
        if part in found:
            print(f"{part}: {found[part]['seconds']:.0f} s {found[part].get('each', '')}")
    if records:
        findings = find_bottlenecks(records)
        print(f"{len(records)} jobs, at most {findings.unaccounted:.2%} unaccounted for, twins {repeat_ratio(records)}")
        print("\n".join(each.sentence for each in findings.bottlenecks if each.configuration == "full"))
    for model, row in found.get("overhead", {}).items():
        if isinstance(row, dict):
            print(f"accounting, {model}: {row['ratio'] - 1:+.1%}, empty phases {row['share_of_empty_phases']:.3%}")
    if (runs / "breakeven").is_dir():
        print(read_run(runs / "breakeven").headline)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--hardware", default="here")
    parser.add_argument("--note", action="append", default=[])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    runs = asked.runs.resolve()
    if asked.write is not None:
        write_analyses(runs, asked.write.resolve(), asked.hardware, asked.note)
        return
    parts = [part for part in PARTS if part in asked.only.split(",")]
    found = measure(runs, resolve_device(asked.device), parts, Clock(asked.seconds), quick=asked.quick)
    summarise(runs, found)


if __name__ == "__main__":
    main()
