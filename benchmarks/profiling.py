"""What `hound profile` and `hound breakeven` find on this machine, how long they take, and what keeping accounts costs.

    python benchmarks/profiling.py [--device cpu|cuda] [--quick] [--out FOLDER] [--json]

Photographs of 500 x 375 are made in a temporary folder, once as they are and once prepared. Four things are run:
  profile    all models of the research on raw photographs, on prepared ones and on texts
  breakeven  fine-tuning against searching; on a GPU with ResNet-50 and ViT-L/16, as published
  overhead   the loop of `hound profile` against the same loop without a clock, in turns
  sum        by how much the phases of any job miss its wall clock
With --out, the analyses and their charts are written there.
"""

import argparse
import contextlib
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from decoding import NUM_PICTURES, QUALITY, SIZE, encode, make_photo, write
from modelhound.meter import Meter, describe_machine, resolve_device, seconds_now
from modelhound.models import find_models
from modelhound.models.parts import running
from modelhound.profiling.benches import prepare_bench
from modelhound.profiling.feeding import decoded_meals
from modelhound.profiling.jobs import configurations_of, profile_configuration
from modelhound.profiling.staging import open_stage
from modelhound.records import to_plain
from modelhound.report.analysis_text import profile_analysis, write_analysis
from modelhound.report.breakeven_charts import breakeven_charts
from modelhound.report.breakeven_text import breakeven_analysis
from modelhound.report.profile_charts import profile_charts
from modelhound.settings import PROFILE_MODELS, BreakevenSettings, ProfileSettings
from modelhound.verbs.breakeven import run_breakeven
from modelhound.verbs.prepare import prepare
from modelhound.verbs.profile import run_profile

NUM_ROUNDS = 7
ITEM_COUNTS = (100, 1000, 10000)


def make_photos(folder: Path, num_items: int) -> str:
    pictures = [encode(make_photo(SIZE, seed), quality=QUALITY) for seed in range(NUM_PICTURES)]
    write(folder / "photos", pictures, num_items)
    return str(folder / "photos")


def run_profiles(photos: str, folder: Path, device: str, quick: bool, out: Path | None) -> dict[str, Any]:
    prepared = str(folder / "prepared")
    started = seconds_now()
    prepare(photos, prepared, models=PROFILE_MODELS["image"])
    prepared_after = seconds_now()
    settings = ProfileSettings(
        photos,
        also=(prepared, "sms"),
        device=(device,),
        quick=quick,
        items=tuple(map(str, ITEM_COUNTS)),
        run=folder / "profile",
    )
    result = run_profile(settings)
    seconds = seconds_now() - prepared_after
    if out is not None:
        charts = profile_charts(result.profiles, result.findings, item_counts=settings.item_counts())
        text = profile_analysis(result.profiles, result.findings, charts, failures=result.failures, notes=result.notes)
        write_analysis(_without_paths(text, folder), charts, out / "profile")
    return {
        "seconds": seconds,
        "prepare_seconds": prepared_after - started,
        "num_jobs": len(result.profiles),
        "failures": [to_plain(each) for each in result.failures],
        "largest_share_unaccounted": result.findings.unaccounted,
        "jobs": [
            {
                "model": each.model,
                "configuration": each.configuration,
                "data": Path(each.data).name,
                "items": each.num_items,
                "batch": each.batch,
                "phases": {phase.phase: round(phase.total, 5) for phase in each.phases},
                "wall_seconds": round(each.wall_seconds, 5),
                "cold": each.cold,
                "cold_reads": each.cold_read_seconds,
                "warm_reads": each.warm_read_seconds,
                "usual_build": each.usual_build_seconds,
            }
            for each in result.profiles
        ],
        "bottlenecks": [each.sentence for each in result.findings.bottlenecks if each.configuration == "full"],
        "moves": [each.sentence for each in result.findings.moves if each.configuration == "full"],
        "savings": [each.sentence for each in result.findings.savings],
    }


def run_comparison(photos: str, folder: Path, device: str, quick: bool, out: Path | None) -> dict[str, Any]:
    """As published where there is a GPU; with networks of the zoo where there is none."""
    on_gpu = device.startswith("cuda")
    settings = BreakevenSettings(
        photos if on_gpu else "fashion",
        models=("timm:resnet50", "timm:vit_large_patch16_224") if on_gpu else ("auto",),
        weights="random" if on_gpu else "pretrained",
        pool=("timm:resnet18", "timm:resnet34", "timm:resnet50", "timm:efficientnet_b0") if on_gpu else ("auto",),
        sizes=("100", "1000") if quick else ("100", "1000", "4000"),
        measured_epochs=3 if on_gpu or quick else None,
        assume=("items=40000-60000", "epochs=20", "models=100"),
        device=device,
        run=folder / "breakeven",
    )
    started = seconds_now()
    result = run_breakeven(settings)
    seconds = seconds_now() - started
    if out is not None:
        charts = breakeven_charts(result.findings)
        text = breakeven_analysis(
            result.findings, charts, data=Path(settings.data).name, device=device, notes=result.notes
        )
        write_analysis(_without_paths(text, folder), charts, out / "breakeven")
    return {
        "seconds": seconds,
        "failures": [to_plain(each) for each in result.failures],
        "findings": to_plain(result.findings),
    }


def _without_paths(text: str, folder: Path) -> str:
    """A temporary folder says nothing to a reader."""
    return text.replace(f"{folder}/", "")


def measure_overhead(photos: str, folder: Path, device: str) -> dict[str, Any]:
    """The timed loop against the same loop with nothing around it, round after round; medians and their ratio."""
    settings = ProfileSettings(photos, parts=("full",), joint=("none",), batches=12, warmup=2, device=(device,))
    from modelhound.data import open_dataset

    dataset = open_dataset(photos, limit=2048)
    work = folder / "overhead"
    work.mkdir()
    rows = {}
    for name in ("timm:resnet18", "timm:mobilenetv3_large_100"):
        (model,) = find_models([name])
        bench = prepare_bench(model, settings, work)
        (full,), _ = configurations_of(bench, settings)
        spent: dict[str, list[float]] = {"timed": [], "bare": []}
        with open_stage(bench, dataset, settings, [full], stamp="", device=device, folder=work) as stage:
            for _ in range(NUM_ROUNDS):
                spent["bare"].append(_bare_loop(stage))
                record = profile_configuration(full, stage)
                spent["timed"].append(
                    sum(map(record.seconds_of, ("wait for data", "data to device", "forward")))
                    + record.wall_seconds
                    - sum(each.total for each in record.phases)
                )
        rows[name] = {"ratio": _median(spent["timed"]) / _median(spent["bare"]), **spent}
    return rows


def _bare_loop(stage: Any) -> float:
    from modelhound.profiling.assembling import assemble, move
    from modelhound.profiling.weight_files import read_some

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


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=["profile", "breakeven", "overhead"])
    asked = parser.parse_args()
    device = resolve_device(asked.device)
    found: dict[str, Any] = {"device": device, "machine": to_plain(describe_machine())}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos = make_photos(folder, 4000 if device != "cpu" else 400)
        runs = {
            "profile": lambda: run_profiles(photos, folder, device, asked.quick, asked.out),
            "overhead": lambda: measure_overhead(photos, folder, device),
            "breakeven": lambda: run_comparison(photos, folder, device, asked.quick, asked.out),
        }
        for what, run in runs.items():
            if asked.only in (None, what):
                with contextlib.redirect_stdout(None):
                    found[what] = run()
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    if "profile" in found:
        own = found["profile"]
        print(
            f"profile: {own['num_jobs']} jobs in {own['seconds']:.0f} s, unaccounted {own['largest_share_unaccounted']:.2%}"
        )
        print("\n".join(own["bottlenecks"] + own["moves"] + own["savings"]))
    for model, row in found.get("overhead", {}).items():
        print(f"overhead of accounting, {model}: {row['ratio'] - 1:+.1%}")
    if "breakeven" in found:
        print(f"breakeven: {found['breakeven']['seconds']:.0f} s")
        print("\n".join(each["sentence"] for each in found["breakeven"]["findings"]["counts"]))


if __name__ == "__main__":
    main()
