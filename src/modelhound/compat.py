"""What other people's packages need before they can be imported here, and what their work needs of a process.

In:  a package to import, how this process is to treat freed memory and threads that wait, or what is to be multiplied
Out: the module; whether the system took it; the product
Nothing here knows a model or a verb.

torchvision's wheels carry compiled operators that are built against one build of torch. Beside another build (a CPU torch
beside the registry's CUDA torchvision is the usual case) they do not load, and then `import torchvision` itself ends with
"operator torchvision::nms does not exist", because its Python code describes the shapes of two operators that nobody
defined. timm and transformers import torchvision, so they fail too, although neither needs those operators.

`import_torchvision` tries the import, and only where it fails in just this way defines the two missing schemas and tries
again. Everything written in Python then works (transforms, models, timm, transformers); torchvision's own decoders and
nms stay unavailable, and `torchvision_ops_available` says so.

glibc hands every large block back to the system when a tensor is freed, and the system zeroes new pages for the next one,
layer after layer. `keep_freed_memory` tells it to keep them; benchmarks/results/allocator_* has what that brings.

OpenMP's threads wait for each other by spinning. On a machine that does other work too, the one they wait for is often
not running, and the spinning takes its place. `wait_asleep` makes them sleep, after a look that is too short to harm anybody:
most waits are over by then, and to be woken takes longer. benchmarks/results/waiting_* has the figures.

torch gives products in fp32 to MKL, which on CPUs that Intel did not make keeps to AVX2 whatever they can do. oneDNN, which
torch carries too and gives its convolutions to, asks the CPU: with AVX-512 it is about twice as fast on an AMD EPYC
(benchmarks/results/products_*). `is_mkl_held_back` says where that is so, `linear_by_one_dnn` is the product.

torch divides every product among its threads, however small it is. Where it is small, to hand out the pieces takes longer than
they do, and on a busy machine many times as long: `one_thread` does without, as torch's own loader processes do. What one
thread tells torch of this becomes the default of threads that are started later; `threads_kept` takes care of that.

Python looks for unused objects among all there are whenever many new ones have been made. What these packages consist of,
some hundred thousand objects, lives as long as the process; it is set aside, or each of these looks would take 0.1 to 0.2 s.
"""

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from modelhound.records import Progress, Watch

if TYPE_CHECKING:
    import torch

__all__ = [
    "WAITING_ASLEEP",
    "free_at_once",
    "give_back_freed_memory",
    "import_timm",
    "import_torchvision",
    "import_transformers",
    "is_mkl_held_back",
    "keep_freed_memory",
    "linear_by_one_dnn",
    "load_libraries",
    "one_thread",
    "threads_kept",
    "torchvision_ops_available",
    "wait_asleep",
]

_MISSING_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
# Some ten microseconds of looks, of which there would otherwise be none; other OpenMPs than GNU's do not know the second.
WAITING_ASLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}
"""For the environment of a process: its threads sleep when what they wait for is not there at once."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4  # names and numbers of malloc.h

_library: "torch.library.Library | None" = None  # schemas vanish when their library object is collected


def import_torchvision() -> ModuleType:
    """torchvision, with its two missing operator schemas defined where its compiled part does not fit this torch."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _define_missing_schemas()
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]  # the failed import left half-made modules behind
        return importlib.import_module("torchvision")


def import_timm() -> ModuleType:
    """timm, which imports torchvision."""
    import_torchvision()
    timm = importlib.import_module("timm")
    _set_aside("timm")
    return timm


def load_libraries(watch: Watch) -> None:
    """timm and what it needs, which takes seconds once: told, and not in the phases of whichever model happens to be first."""
    watch(Progress(task="loading libraries", done=0, total=1))
    import_timm()
    watch(Progress(task="loading libraries", done=1, total=1))


def import_transformers() -> ModuleType:
    """transformers, which imports torchvision too, told not to write to the terminal."""
    import_torchvision()
    transformers = importlib.import_module("transformers")
    _set_aside("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def torchvision_ops_available() -> bool:
    """Whether torchvision's compiled operators (nms, its image decoders) can be called."""
    import_torchvision()
    return _library is None


def keep_freed_memory() -> bool:
    """Let this process reuse the memory of freed tensors; False where the C library is not glibc and nothing was done.

    The process then holds on to its peak until it ends, which is what a search over models of similar size does anyway.
    """
    return _tell_malloc({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1})


def free_at_once() -> bool:
    """Let this process hand the memory of every large freed tensor back; False where the C library is not glibc.

    Slower than `keep_freed_memory`, which it undoes. Up to as much as a large one has may stay at the end of the heap, and
    pieces in between stay until `give_back_freed_memory` is called: handed back at once, they would be taken and zeroed anew
    for every layer. If all of it stayed, layers of many sizes would leave gaps that add up (323 MB held of 284 allowed).
    """
    told = _tell_malloc({_M_MMAP_MAX: 1 << 16, _M_MMAP_THRESHOLD: 1 << 25, _M_TRIM_THRESHOLD: 1 << 25})
    return told and give_back_freed_memory()


def _tell_malloc(options: Mapping[int, int]) -> bool:
    """Set options of glibc's allocator; False where the C library is another, or does not take one of them."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None or sys.platform != "linux":
        return False
    taken = [mallopt(option, value) for option, value in options.items()]  # all of them, whatever becomes of the first
    return all(taken)


def give_back_freed_memory() -> bool:
    """Hand what freed tensors held back to the system at once; False where the C library is not glibc and nothing was done.

    A process that forks shares its memory with its children until either writes: kept memory then costs a copy per page.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return bool(malloc_trim is not None and malloc_trim(0))


def wait_asleep() -> bool:
    """Let threads that wait for each other soon sleep; False where torch is loaded already, which is too late.

    What the user set themselves stays. For work that times single calls, spinning is the better choice on a quiet machine.
    """
    if "torch" in sys.modules:
        return False
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in WAITING_ASLEEP.items():
            os.environ.setdefault(name, value)
    return True


@contextlib.contextmanager
def threads_kept() -> Iterator[None]:
    """Whatever is told torch meanwhile, this thread and those that it starts later have as many threads as before."""
    import torch

    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """What this thread asks of torch, it does by itself."""
    import torch

    with threads_kept():
        torch.set_num_threads(1)
        yield


@functools.cache
def is_mkl_held_back() -> bool:
    """Whether this CPU could multiply faster in fp32 than MKL lets it, and oneDNN is there."""
    import torch

    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512") and _maker_of_cpu() == "AuthenticAMD"


def _maker_of_cpu() -> str:
    """As it calls itself; empty where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def linear_by_one_dnn(
    rows: "torch.Tensor", weight: "torch.Tensor", bias: "torch.Tensor | None" = None
) -> "torch.Tensor":
    """What torch.nn.functional.linear makes of these, by oneDNN; all in fp32 on a CPU, weight and bias whole in memory.

    Of a bias that is one number spread over all places it would make nonsense.
    """
    import torch

    made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return made


@functools.cache
def _set_aside(package: str) -> None:
    """Once for each package: what came to life later is none of its business."""
    gc.freeze()


def _define_missing_schemas() -> None:
    global _library
    if _library is None:
        import torch

        _library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for schema in _MISSING_SCHEMAS:
            _library.define(schema)  # type: ignore[no-untyped-call]
