"""What becomes of bf16 on this CPU, tried in a child: some CPUs announce instructions that end the process.

In:  the precision that was asked for, and where
Out: nothing, or a RequestError that says how to go on; what was found, for those who report on the machine
Nothing here multiplies in this process, and nothing is remembered on disk: the next machine may be another.
"""

import functools
import threading
from dataclasses import dataclass, replace
from typing import Any

from modelhound.errors import RequestError
from modelhound.launch.fresh import Outcome, run_in_fresh_process
from modelhound.meter import SamplingPlan, take_samples

__all__ = ["SAFE_INSTRUCTIONS", "Bf16Found", "Bf16Trial", "try_bf16"]

SAFE_INSTRUCTIONS = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""For the environment of a process: oneDNN leaves instructions alone that are newer than these."""

_PROBE = f"{__name__}:probe_bf16"
_OF_THE_CPU = ("SIGILL", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGABRT")  # how a process ends by what it runs itself
_MOST_SECONDS = 180.0  # for what takes two: the child loads torch, on a machine that may be busy
_SIDE = 512
_TURNS = 10
_FEW = SamplingPlan(warm_up_seconds=0.0, least_warm_ups=0, most_warm_ups=0, least_samples=5, most_samples=5)
_trying = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Bf16Found:
    """How the child fared."""

    outcome: Outcome
    is_right: bool
    """Products and convolutions give the right numbers."""
    times_fp32: float | None
    """How many times as fast as in fp32 a product is; None where none came to its end."""
    is_cured: bool
    """The process only lives with SAFE_INSTRUCTIONS."""

    @property
    def is_fatal(self) -> bool:
        """A product ends the process. An ordinary error, or a child that was ended from outside or never got so far on a busy
        machine, says nothing of the CPU."""
        return self.outcome.ending in _OF_THE_CPU

    @property
    def ending(self) -> str:
        """In words, where it is fatal."""
        announced = ": the CPU announces instructions that it cannot run" if self.outcome.ending == "SIGILL" else ""
        return f"a product ends the process with {self.outcome.ending}{announced}"

    @property
    def cure(self) -> str:
        """What to do where it is fatal."""
        if not self.is_cured:
            return "keep to fp32 on this CPU"
        return " ".join(("export", *map("=".join, SAFE_INSTRUCTIONS.items()), "before you start"))


class Bf16Trial:
    """Begins, where bf16 was asked for, beside whatever comes next: to load libraries takes longer."""

    def __init__(self, precision: str) -> None:
        self._is_needed = precision == "bf16"
        if self._is_needed:
            # a daemon: who interrupts a command need not wait for it
            threading.Thread(target=try_bf16, name="trying bf16", daemon=True).start()

    def settle(self, *devices: str) -> None:
        """Before anything runs on these: raise a RequestError where one of them is a CPU that cannot have it."""
        if not self._is_needed or "cpu" not in devices:
            return
        found = try_bf16()
        if found.is_fatal:
            raise RequestError(
                f"cannot use --precision bf16 on this CPU: {found.ending}; {found.cure}, or leave it out"
            )
        if found.outcome.ok and not found.is_right:
            raise RequestError("cannot use --precision bf16 on this CPU: products give wrong numbers; use fp32")


def try_bf16() -> Bf16Found:
    """What becomes of it, tried once; who asks meanwhile waits."""
    with _trying:
        return _try_bf16()


@functools.cache
def _try_bf16() -> Bf16Found:
    """In a child, and where it dies once more without the newest instructions."""
    outcome = run_in_fresh_process(_PROBE, timeout_seconds=_MOST_SECONDS)
    value: dict[str, Any] = outcome.value if outcome.ok else {}
    found = Bf16Found(
        outcome=outcome,
        is_right=bool(value.get("is_right")),
        times_fp32=value.get("times_fp32"),
        is_cured=False,
    )
    if not found.is_fatal:
        return found
    guarded = run_in_fresh_process(_PROBE, environment=SAFE_INSTRUCTIONS, timeout_seconds=_MOST_SECONDS)
    is_cured = guarded.ok and bool(guarded.value["is_right"])
    return replace(found, is_cured=is_cured)


def probe_bf16() -> dict[str, Any]:
    """Runs in the child: the products and convolution that oneDNN gives to the widest instructions it believes in."""
    import torch

    from modelhound.compat import is_mkl_held_back, linear_by_one_dnn

    ones = torch.ones(_SIDE, _SIDE, dtype=torch.bfloat16)
    images = torch.ones(4, 16, 32, 32, dtype=torch.bfloat16)
    kernels = torch.ones(32, 16, 3, 3, dtype=torch.bfloat16)
    with torch.inference_mode():
        product, image = ones @ ones, torch.nn.functional.conv2d(images, kernels)
        matrices = [torch.ones(_SIDE, _SIDE, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)]
        # as features are made: where MKL is held back, what it takes says nothing of fp32
        ways = (linear_by_one_dnn if is_mkl_held_back() else torch.mm, torch.mm)
        works = [functools.partial(way, each, each) for way, each in zip(ways, matrices, strict=True)]
        # in turns, so that a busy moment hits both
        turns = [[min(take_samples(work, _FEW).seconds) for work in works] for _ in range(_TURNS)]
        exact, half = map(min, zip(*turns, strict=True))
    return {
        "is_right": bool(product[0, 0] == _SIDE) and bool(image[0, 0, 0, 0] == 144),
        "times_fp32": exact / half,
    }
