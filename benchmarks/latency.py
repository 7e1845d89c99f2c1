"""`hound latency` against hand-written loops, timm's convention, its own overhead, and its predictions.

python benchmarks/latency.py [--device cpu|cuda] [--only loops,timm,...] [--rounds N] [--json FILE] [--keep FOLDER]

loops       medians of five models against a loop that anybody would write (CUDA events on a GPU, the host's clock on a CPU),
            in one process, in turns; the ratio is the median of those of the rounds. Beside it our loop over the network that
            was built by hand, which tells a difference of loops from one of networks
timm        --sampling timm against timm's own steps written by hand: ten calls, then forty, their mean by the host's clock
profiler    whether torch's profiler, once it has looked, slows down what comes after it (GPU only)
overhead    what a point takes beside its first call, warm-up and samples, as a sweep records it
prediction  each of more than twenty timm models predicted from the others (leave one out), in each setting
sweep       the whole default sweep, from argv to answer

The JSON file is written anew after every part and every model; --keep holds the run folders of sweeps, which grow with every
point.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from modelhound.analysis.latency import judge_prediction
from modelhound.analysis.prediction import Anchor, fit_predictor, predict_anchor
from modelhound.meter import SamplingPlan, describe_machine, resolve_device, seconds_now, take_samples
from modelhound.records import LatencyPoint, to_plain
from modelhound.settings import PLAIN, LatencySettings
from modelhound.timing.measuring import PointRequest, measure_point

PARTS = ("profiler", "loops", "timm", "overhead", "prediction", "sweep")
LOOP_SECONDS = 0.4

LOOPED: tuple[tuple[str, int], ...] = (
    ("tv:resnet18", 224),
    ("tv:mobilenet_v2", 224),
    ("timm:vit_small_patch16_224", 224),
    ("hf:google-bert/bert-base-uncased", 128),
    ("hf:distilbert/distilbert-base-uncased", 128),
)

PREDICTED = (
    *("resnet18", "resnet34", "resnet50", "resnet101", "resnext50_32x4d", "wide_resnet50_2", "densenet121", "vgg16"),
    *("mobilenetv2_100", "mobilenetv3_large_100", "efficientnet_b0", "efficientnet_b3", "mnasnet_100", "ghostnet_100"),
    *("regnetx_032", "regnety_032", "convnext_tiny", "convnext_small", "dla60", "rexnet_100", "resnetv2_50"),
    *("vit_small_patch16_224", "vit_base_patch16_224", "deit3_small_patch16_224", "swin_tiny_patch4_window7_224"),
    *("mixer_b16_224", "resmlp_12_224", "poolformer_s12"),
)
FIVE = ("resnet50", "mobilenetv2_100", "convnext_tiny", "vit_small_patch16_224", "regnetx_032")


class Report:
    """What was found so far; written after every change, so that an interrupted run leaves what it has."""

    def __init__(self, path: Path | None, **about: Any) -> None:
        self.path, self.found = path, dict(about)

    def add(self, part: str, **values: Any) -> None:
        self.found.setdefault(part, {}).update(values)
        if self.path:
            self.path.write_text(json.dumps(self.found, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batch", type=int, default=0, help="of loops and predictions; 0 suits the device")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the runs of sweeps")
    asked = parser.parse_args()
    unknown = set(asked.only.split(",")) - set(PARTS)
    if unknown:
        sys.exit(f"cannot measure {', '.join(sorted(unknown))}: expected some of {', '.join(PARTS)}")
    device = resolve_device(asked.device)
    batch = asked.batch or (64 if device != "cpu" else 1)
    report = Report(asked.json, device=device, precision=asked.precision, machine=to_plain(describe_machine()))
    for part in asked.only.split(","):
        start = seconds_now()
        if part in ("loops", "timm"):
            compare_loops(report, part, device, asked.precision, batch, asked.rounds)
        elif part == "profiler":
            measure_profiler(report, device)
        elif part == "overhead":
            measure_overhead(report, device, asked.keep)
        elif part == "prediction":
            measure_prediction(report, device, batch, asked.keep)
        else:
            measure_sweep(report, device, asked.keep)
        report.add(part, seconds=seconds_now() - start)
        print(
            part, json.dumps({key: value for key, value in report.found[part].items() if key != "points"}), flush=True
        )


def compare_loops(report: Report, part: str, device: str, precision: str, batch: int, rounds: int) -> None:
    """Ours and a hand-written loop, in turns, who begins changing from round to round."""
    points: dict[str, Any] = {}
    for model, size in LOOPED:
        call = build_by_hand(model, size, batch, precision, device)
        turns: dict[str, Callable[[], float]] = {
            "hand": lambda call=call: loop_by_hand(call, device, part),
            "ours": lambda model=model, size=size: time_ours(model, size, batch, precision, device, part),
        }
        if part == "loops":
            turns["our loop, their network"] = lambda call=call: loop_over(call, device)
        times: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(rounds):
            for name in list(turns) if number % 2 else reversed(list(turns)):
                times[name].append(turns[name]())
        ratios = {
            name: [mine / hand for mine, hand in zip(own, times["hand"], strict=True)]
            for name, own in times.items()
            if name != "hand"
        }
        print(model, {name: [round(ratio, 3) for ratio in each] for name, each in ratios.items()}, flush=True)
        points[model] = {
            "seconds": times,
            "ratios": ratios,
            "median_ratios": {name: statistics.median(each) for name, each in ratios.items()},
        }
        report.add(
            part,
            batch=batch,
            ratio={name: each["median_ratios"]["ours"] for name, each in points.items()},
            worst_difference=max(abs(each["median_ratios"]["ours"] - 1) for each in points.values()),
            points=points,
        )


def time_ours(model: str, size: int, batch: int, precision: str, device: str, convention: str) -> float:
    """The path of the command, sampled as long as the loop by hand: stopping early would compare other moments."""
    is_text = model.startswith("hf:")
    point = LatencyPoint(
        model=model,
        batch=batch,
        image=None if is_text else size,
        tokens=size if is_text else None,
        precision=precision,
        device=device,
    )
    request = PointRequest(
        point=point,
        modality="text" if is_text else "image",
        weights="random",
        settings=PLAIN,
        seconds=LOOP_SECONDS,
        width=0.0001,
        sampling="timm" if convention == "timm" else "adaptive",
        compile=False,
        memory_bytes=None,
        seed=0,
    )
    measured = measure_point(to_plain(request))
    if convention == "timm":
        return statistics.fmean(measured["wall_seconds"] or measured["seconds"])
    return statistics.median(measured["seconds"])


def loop_over(call: Callable[[], Any], device: str) -> float:
    """Our loop, over a network that somebody else built."""
    import torch

    plan = SamplingPlan(warm_up_seconds=LOOP_SECONDS / 4, budget_seconds=LOOP_SECONDS, most_samples=10_000)
    with torch.inference_mode():
        return statistics.median(take_samples(call, plan, device=device).seconds)


def build_by_hand(model: str, size: int, batch: int, precision: str, device: str) -> Callable[[], Any]:
    """The network as its own library builds it, without anything of ours but the cure for importing it."""
    import torch

    from modelhound.compat import import_timm, import_torchvision, import_transformers

    torch.set_float32_matmul_precision("highest")  # some environments allow tf32; fp32 is what is compared
    source, _, name = model.partition(":")
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    if source == "tv":
        import_torchvision()
        from torchvision.models import get_model

        module = get_model(name)
    elif source == "timm":
        module = import_timm().create_model(name)
    else:
        transformers = import_transformers()
        config = transformers.DistilBertConfig() if "distilbert" in name else transformers.BertConfig()
        module = transformers.AutoModel.from_config(config)
    module = module.eval().to(device, dtype)
    if source == "hf":
        inputs: dict[str, Any] = {
            "input_ids": torch.randint(0, 30000, (batch, size), device=device),
            "attention_mask": torch.ones(batch, size, dtype=torch.long, device=device),
        }
        return lambda: module(**inputs)
    images = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
    return lambda: module(images)


def loop_by_hand(call: Callable[[], Any], device: str, convention: str) -> float:
    import time

    import torch

    on_gpu = device.startswith("cuda")
    with torch.inference_mode():
        for _ in range(10 if on_gpu or convention == "timm" else 3):
            call()
        if on_gpu:
            torch.cuda.synchronize()
        seconds: list[float] = []
        while len(seconds) < (40 if convention == "timm" else 8) or (
            convention != "timm" and sum(seconds) < LOOP_SECONDS
        ):
            if on_gpu and convention != "timm":
                before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                before.record()
                call()
                after.record()
                torch.cuda.synchronize()
                seconds.append(before.elapsed_time(after) / 1000)
            else:
                start = time.perf_counter()
                call()
                if on_gpu:
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - start)
    return statistics.fmean(seconds) if convention == "timm" else statistics.median(seconds)


def measure_profiler(report: Report, device: str) -> None:
    """A call that is bound by launches, before and after the profiler looked for the first time in this process."""
    import torch

    from modelhound.timing.kernels import look_at_kernels

    call = build_by_hand("tv:mobilenet_v2", 224, 1, "fp32", device)
    loop_by_hand(call, device, "loops")
    before = [loop_by_hand(call, device, "loops") for _ in range(3)]
    with torch.inference_mode():
        busy = look_at_kernels(call, device=device)
    after = [loop_by_hand(call, device, "loops") for _ in range(3)]
    report.add(
        "profiler",
        before_seconds=before,
        after_seconds=after,
        ratio=statistics.median(after) / statistics.median(before),
        kernel_seconds=busy.kernel_seconds,
        covered_share=busy.covered_share,
    )


def measure_overhead(report: Report, device: str, keep: Path | None) -> None:
    """A small sweep through the command's own path."""
    models = ("tv:resnet18", "tv:squeezenet1_0", "hf:distilbert/distilbert-base-uncased")
    start = seconds_now()
    sizes: dict[str, Any] = {"batch": (1, 2, 4), "image": (64, 128), "sequence": (16, 64)}
    result = sweep("overhead", keep, models=models, device=(device,), precision=("fp32",), **sizes)
    wall = seconds_now() - start
    order = sorted(result.measured, key=lambda record: record.place)
    later = [record.overhead_seconds for record in order[1:]]
    report.add(
        "overhead",
        num_points=len(order),
        first_seconds=order[0].overhead_seconds,
        median_seconds=statistics.median(later),
        most_seconds=max(later),
        wall_seconds=wall,
    )


def measure_prediction(report: Report, device: str, batch: int, keep: Path | None) -> None:
    """Leave one model out, in each precision."""
    models = tuple(f"timm:{name}" for name in PREDICTED)
    on_gpu = device.startswith("cuda")
    precisions = ("fp32", "bf16") if on_gpu else ("fp32",)
    batches = (batch,)
    result = sweep(
        "prediction", keep, models=models, batch=batches, device=(device,), precision=precisions, seconds=0.3
    )
    report.add("prediction", num_models=len(models), num_points=len(result.measured), num_failed=len(result.failed))
    errors: dict[str, Any] = {}
    for at in sorted(set(batches)):
        records = [record for record in result.measured if record.point.batch == at]
        for each in judge_prediction(records):
            name = f"{each.precision} batch {at}"
            errors[name] = {
                "kind": fit_predictor(each.anchors).kind,
                "from_five": _from_five(each.anchors),
                **(to_plain(each.error) if each.error else {}),
            }
            report.add("prediction", median_error={key: value["median_error"] for key, value in errors.items()})
            report.add("prediction", points=errors)


def _from_five(anchors: Sequence[Anchor]) -> float:
    """The median error over all others when only five well-known networks were timed."""
    known = [anchor for anchor in anchors if anchor.model.removeprefix("timm:") in FIVE]
    predictor = fit_predictor(known)
    off = []
    for anchor in (each for each in anchors if each not in known):
        guess = predict_anchor(predictor, anchor)
        off.append(abs(guess.seconds / anchor.seconds - 1))
    return statistics.median(off)


def measure_sweep(report: Report, device: str, keep: Path | None) -> None:
    result = sweep("sweep", keep, device=(device,))
    report.add(
        "sweep",
        num_points=len(result.measured),
        num_failed=len(result.failed),
        hypotheses=[each.conclusion.sentence for each in result.conclusions],
    )


def sweep(name: str, keep: Path | None, **options: Any) -> Any:
    from modelhound.verbs.latency import run_latency

    with tempfile.TemporaryDirectory() as folder:
        return run_latency(LatencySettings(**options, run=(keep or Path(folder)) / name))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # what was found is written
        sys.exit(130)
