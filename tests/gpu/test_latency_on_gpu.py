"""Latencies on a GPU: events and kernels, launch-bound floors, running out of the device's memory."""

from pathlib import Path

import pytest
import torch

from modelhound.settings import LatencySettings
from modelhound.verbs.latency import run_latency

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]


def test_host_device_and_kernel_times_are_told_apart_and_small_batches_are_launch_bound(tmp_path: Path) -> None:
    result = run_latency(
        LatencySettings(
            models=("hf:distilbert/distilbert-base-uncased", "tv:resnet18"),
            batch=(1, 2, 4, 8, 16, 32, 64, 128),
            precision=("fp32", "bf16"),
            device=("cuda",),
            seconds=0.3,
            run=tmp_path / "run",
        )
    )
    assert not result.failed
    for record, row in zip(result.measured, result.summaries, strict=True):
        assert len(record.seconds) == len(record.host_seconds) == len(record.wall_seconds)
        assert record.kernel_seconds is not None
        assert 0 < record.kernel_seconds < 1.2 * row.median_seconds
        assert record.covered_share is not None
        assert record.peak_memory_bytes > record.weight_bytes
        assert record.tf32 == ("convolutions" if record.point.precision == "fp32" else None)
    bounds = {(row.point.model, row.point.batch, row.point.precision): row.regime.bound for row in result.summaries}
    assert bounds["tv:resnet18", 1, "bf16"] == "launch"
    assert bounds["tv:resnet18", 128, "fp32"] != "launch"


def test_running_out_of_the_devices_memory_is_a_row(tmp_path: Path) -> None:
    result = run_latency(
        LatencySettings(
            models=("tv:vgg16",),
            batch=(1, 2, 32, 64, 4096),
            precision=("fp32",),
            device=("cuda",),
            memory="1500MB",
            seconds=0.1,
            run=tmp_path / "run",
        )
    )
    assert {record.point.batch for record in result.measured} >= {1, 2}
    assert result.failed
    assert {each.why for each in result.failed} == {"out of memory"}


def test_fp32_rounds_convolutions_to_tf32_and_strict_fp32_rounds_nothing(tmp_path: Path) -> None:
    result = run_latency(
        LatencySettings(
            models=("tv:vgg16",),
            batch=(64,),
            precision=("fp32", "fp32-strict", "tf32"),
            device=("cuda",),
            seconds=0.2,
            run=tmp_path / "run",
        )
    )
    medians = {row.point.precision: row.median_seconds for row in result.summaries}
    assert medians["fp32-strict"] > 1.5 * medians["fp32"]
    assert {each.precision: each.tf32 for each in result.ceilings} == {
        "fp32": "convolutions",
        "fp32-strict": "none",
        "tf32": "all",
    }
    rates = {each.precision: each.kind_flops_per_second for each in result.ceilings}
    assert rates["tf32"]["product"] > 2 * rates["fp32"]["product"]
    assert rates["fp32"]["convolution"] > 2 * rates["fp32-strict"]["convolution"]


def test_timms_convention_takes_forty_samples(tmp_path: Path) -> None:
    result = run_latency(
        LatencySettings(
            models=("tv:resnet18",),
            batch=(8,),
            precision=("fp32",),
            device=("cuda",),
            sampling="timm",
            run=tmp_path / "r",
        )
    )
    (record,) = result.measured
    assert (len(record.seconds), record.num_warmup) == (40, 10)
