"""`hound latency` against hand-written loops, timm's convention, its own overhead, and its predictions.

python benchmarks/latency.py [--device cpu|cuda] [--only loops,timm,overhead,prediction,sweep] [--rounds N] [--json FILE]

loops       medians of five models against a loop that anybody would write (CUDA events on a GPU, the host's clock on a CPU),
            in one process, in turns; the ratio is that of the medians of all rounds
timm        --sampling timm against timm's own steps written by hand: ten calls, then forty, their mean by the host's clock
overhead    what a point takes beside its first call, warm-up and samples, as a sweep records it
prediction  each of more than twenty timm models predicted from the others (leave one out), in each setting
sweep       the whole default sweep, from argv to answer
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modelhound.analysis.latency import judge_prediction
from modelhound.meter import describe_machine, resolve_device, seconds_now
from modelhound.records import LatencyPoint, to_plain
from modelhound.settings import PLAIN, LatencySettings
from modelhound.timing.measuring import PointRequest, measure_point

PARTS = ("loops", "timm", "overhead", "prediction", "sweep")

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--batch", type=int, default=0, help="of loops and predictions; 0 suits the device")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    device = resolve_device(asked.device)
    batch = asked.batch or (64 if device != "cpu" else 1)
    found: dict[str, Any] = {"device": device, "precision": asked.precision, "machine": to_plain(describe_machine())}
    for part in asked.only.split(","):
        start = seconds_now()
        if part in ("loops", "timm"):
            found[part] = compare_loops(device, asked.precision, batch, asked.rounds, convention=part)
        elif part == "overhead":
            found[part] = measure_overhead(device)
        elif part == "prediction":
            found[part] = measure_prediction(device, batch)
        elif part == "sweep":
            found[part] = measure_sweep(device)
        else:
            sys.exit(f"cannot measure {part!r}: expected some of {', '.join(PARTS)}")
        found[part]["seconds"] = seconds_now() - start
        print(part, json.dumps({key: value for key, value in found[part].items() if key != "points"}), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))


def compare_loops(device: str, precision: str, batch: int, rounds: int, *, convention: str) -> dict[str, Any]:
    """Ours and a hand-written loop, in turns, who begins changing from round to round."""
    ratios: dict[str, Any] = {}
    for model, size in LOOPED:
        call, close = build_by_hand(model, size, batch, precision, device)
        ours: list[float] = []
        theirs: list[float] = []
        for number in range(rounds):
            for turn in ("ours", "hand") if number % 2 else ("hand", "ours"):
                if turn == "ours":
                    ours.append(time_ours(model, size, batch, precision, device, convention))
                else:
                    theirs.append(loop_by_hand(call, device, convention))
        close()
        print(model, [round(mine / hand, 3) for mine, hand in zip(ours, theirs, strict=True)], flush=True)
        ratios[model] = {
            "ours_seconds": statistics.median(ours),
            "hand_seconds": statistics.median(theirs),
            "ratio": statistics.median(ours) / statistics.median(theirs),
            "ratios": [mine / hand for mine, hand in zip(ours, theirs, strict=True)],
        }
    worst = max(abs(each["ratio"] - 1) for each in ratios.values())
    return {
        "batch": batch,
        "worst_difference": worst,
        "points": ratios,
        "ratio": {m: r["ratio"] for m, r in ratios.items()},
    }


def time_ours(model: str, size: int, batch: int, precision: str, device: str, convention: str) -> float:
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
        seconds=0.6,
        width=0.01,
        sampling="timm" if convention == "timm" else "adaptive",
        compile=False,
        memory_bytes=None,
        seed=0,
    )
    measured = measure_point(to_plain(request))
    if convention == "timm":
        return statistics.fmean(measured["wall_seconds"] or measured["seconds"])
    return statistics.median(measured["seconds"])


def build_by_hand(
    model: str, size: int, batch: int, precision: str, device: str
) -> tuple[Callable[[], Any], Callable[[], None]]:
    """The network as its own library builds it, without anything of ours but the cure for importing it."""
    import torch

    from modelhound.compat import import_timm, import_torchvision, import_transformers

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
        return (lambda: module(**inputs)), (lambda: inputs.clear())
    images = torch.randn(batch, 3, size, size, device=device, dtype=dtype)
    return (lambda: module(images)), (lambda: None)


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
        while len(seconds) < (40 if convention == "timm" else 8) or (convention != "timm" and sum(seconds) < 0.6):
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


def measure_overhead(device: str) -> dict[str, Any]:
    """A small sweep through the command's own path."""
    models = ("tv:resnet18", "tv:squeezenet1_0", "hf:distilbert/distilbert-base-uncased")
    start = seconds_now()
    result = sweep(
        models=models, batch=(1, 2, 4), image=(64, 128), sequence=(16, 64), device=(device,), precision=("fp32",)
    )
    wall = seconds_now() - start
    order = sorted(result.measured, key=lambda record: record.place)
    later = [record.overhead_seconds for record in order[1:]]
    return {
        "num_points": len(order),
        "first_seconds": order[0].overhead_seconds,
        "median_seconds": statistics.median(later),
        "most_seconds": max(later),
        "wall_seconds": wall,
    }


def measure_prediction(device: str, batch: int) -> dict[str, Any]:
    """Leave one model out, in each precision, at one batch and at three together."""
    models = tuple(f"timm:{name}" for name in PREDICTED)
    precisions = ("fp32", "bf16") if device.startswith("cuda") else ("fp32",)
    batches = (1, 8, batch) if device.startswith("cuda") else (1,)
    result = sweep(models=models, batch=batches, device=(device,), precision=precisions, seconds=0.5)
    errors = {}
    for at in (*sorted(set(batches)), None):
        records = [record for record in result.measured if at is None or record.point.batch == at]
        for each in judge_prediction(records):
            name = f"{each.precision} {'all batches' if at is None else f'batch {at}'}"
            errors[name] = {
                "median_error": each.error.median_error if each.error else None,
                "within": each.error.within if each.error else None,
                "errors": each.error.errors if each.error else {},
            }
    short = {name: each["median_error"] for name, each in errors.items()}
    return {"num_models": len(models), "median_error": short, "num_failed": len(result.failed), "points": errors}


def measure_sweep(device: str) -> dict[str, Any]:
    result = sweep(device=(device,))
    return {
        "num_points": len(result.measured),
        "num_failed": len(result.failed),
        "hypotheses": [each.conclusion.sentence for each in result.conclusions],
    }


def sweep(**options: Any) -> Any:
    from modelhound.verbs.latency import run_latency

    with tempfile.TemporaryDirectory() as folder:
        return run_latency(LatencySettings(**options, run=Path(folder) / "run"))


if __name__ == "__main__":
    main()
