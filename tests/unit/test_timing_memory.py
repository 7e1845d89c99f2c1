"""The host's memory is measured from peak to peak, and a limit makes one call fail instead of the machine."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from modelhound.errors import is_out_of_memory
from modelhound.meter import PeakMemory
from modelhound.timing.memory import count_swapped_pages, limited_memory, usable_memory_bytes

MEGABYTE = 10**6

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells and limits memory this way")


@linux_only
def test_the_peak_is_that_since_one_began_to_look() -> None:
    torch.ones(50 * MEGABYTE, dtype=torch.uint8)
    peak = PeakMemory()
    torch.ones(20 * MEGABYTE, dtype=torch.uint8)
    assert 15 * MEGABYTE < peak.bytes_added < 40 * MEGABYTE
    assert peak.bytes_held > peak.bytes_added


@linux_only
def test_asking_for_more_than_allowed_is_an_error_of_that_call_alone() -> None:
    with limited_memory(50 * MEGABYTE):
        torch.ones(20 * MEGABYTE, dtype=torch.uint8)
        with pytest.raises(RuntimeError) as caught:
            torch.ones(500 * MEGABYTE, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)
    assert torch.ones(100 * MEGABYTE, dtype=torch.uint8).sum() == 100 * MEGABYTE


WIDE = """
import torch
from torch import nn

class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = nn.Parameter(torch.ones(25_000_000))

    def forward(self, images):
        return images.mean((2, 3)) * self.weights[:3]

def make():
    return Wide(), {"input_size": 8, "mean": (0.5,) * 3, "std": (0.25,) * 3}
"""


MEASURE = """
import json
import sys

from modelhound.records import LatencyPoint, to_plain
from modelhound.settings import ModelSettings
from modelhound.timing.measuring import PointRequest, measure_point

(model,), peaks = sys.argv[1:], {}
for precision in ("fp32", "bf16"):
    request = PointRequest(
        point=LatencyPoint(model=model, batch=1, image=8, tokens=None, precision=precision, device="cpu"),
        modality="image",
        weights="pretrained",
        settings=ModelSettings(models=(model,)),
        seconds=0.01,
        width=0.5,
        sampling="adaptive",
        compile=False,
        memory_bytes=None,
        seed=0,
    )
    peaks[precision] = measure_point(to_plain(request))["peak_memory_bytes"]
print(json.dumps(peaks))
"""


@linux_only
def test_a_point_holds_its_weights_once_in_its_own_precision(tmp_path: Path) -> None:
    """The original, from which a copy in another precision is made, is kept for points to come.

    In a process of its own, as in a sweep: what tests before this one left behind, and is freed meanwhile, would be missing.
    """
    file = tmp_path / "wide.py"
    file.write_text(WIDE)
    command = [sys.executable, "-c", MEASURE, f"py:{file}:make"]
    peaks = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert 100 * MEGABYTE <= peaks["fp32"] < 140 * MEGABYTE
    assert 50 * MEGABYTE <= peaks["bf16"] < 90 * MEGABYTE


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("could not create a primitive descriptor for a convolution"), False),
        (RuntimeError("can't start new thread"), True),
        (SystemError("error return without exception set"), True),
        (SystemError("bad argument to internal function"), False),
        (ImportError("libtorch_cpu.so: failed to map segment from shared object"), True),
        (ImportError("cannot import name 'nothing'"), False),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_errors_that_mean_lack_of_memory_are_known(error: Exception, is_memory: bool) -> None:
    assert is_out_of_memory(error) is is_memory


def test_a_machine_has_memory_to_use() -> None:
    assert 0 < usable_memory_bytes() < psutil.virtual_memory().total
    assert count_swapped_pages() <= resource.getrusage(resource.RUSAGE_SELF).ru_majflt
