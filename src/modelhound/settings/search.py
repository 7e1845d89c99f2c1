"""What can be asked of `hound search`."""

import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from modelhound.errors import RequestError
from modelhound.settings.checks import (
    check_at_least,
    check_choices,
    check_device,
    check_place,
    check_text,
    parse_bytes,
    parse_share,
    part_of,
    split_list,
    tidy,
)
from modelhound.settings.data import DataSettings
from modelhound.settings.models import ModelSettings
from modelhound.settings.scorers import SCORERS

__all__ = ["DEFAULT_TOP", "MOST_FINALISTS", "SearchSettings"]

DEFAULT_TOP = 5
"""How many of the best models a search makes sure of unless told."""


MOST_FINALISTS = 24
"""What --finals auto takes, where the budget allows."""

_MOST_SECONDS = 1e9  # thirty years


@dataclass(frozen=True)
class SearchSettings(ModelSettings, DataSettings):
    """Which pretrained network suits this data set?"""

    _: KW_ONLY

    top: int | None = None
    """How many of the best models you want to know, and how many are listed; the default finds the best 5 and lists all."""

    scorers: tuple[str, ...] = ("auto",)
    """ridge, knn, probe, centroid, sgd_probe (the first decides), hscore, hscore_shrunk, logme, leep, nleep, transrate, gbc,
    sfda; auto is ridge, knn, probe, hscore and logme, as far as the task allows."""

    exhaustive: bool = False
    """Measure every model on every item; otherwise those that cannot be among the --top best any more are dropped early."""

    risk: float = 0.01
    """Drop a model only if its chance of being among the --top best is smaller than this."""

    finals: str | None = None
    """Race so many of the best (or auto: what the budget allows, 24 at most) by short fine-tuning, which may tell more."""

    finals_budget: str = "13%"
    """When finals end at the latest: a share of what fine-tuning every model would take, or seconds, such as 120s."""

    explain: bool = False
    """Say what would be run, what is shared and how long it would take, and stop there."""

    fresh: bool = False
    """Compute every feature anew and remember none; otherwise those of earlier searches are used and new ones kept."""

    plain: bool = False
    """One model after the other, nothing shared, nothing dropped: slow, for comparison."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the networks' arithmetic; auto is fp32 on a CPU and bf16 on a GPU."""

    memory: str | None = None
    """Memory to use at most, such as 4GB: of a GPU, or on a CPU what the search takes beyond libraries and mapped files."""

    batch: int | None = None
    """Items per forward pass; the default suits the device and the size of the items."""

    workers: int | None = None
    """Threads that decode items, with --plain processes that load them; the default follows the number of cores and items."""

    loader: Path | None = None
    """A file that `hound loader` wrote: how to load where --batch and --workers are not given. The default is what it found
    for such data on this machine; none does without."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    on: str = "local"
    """Where to run: local; ray, the Ray cluster this machine belongs to or else this machine alone;
    ray://HOST:PORT, the one whose head node listens there (usually on port 6379)."""

    run: Path | None = None
    """Folder for the results; the default is named after the request, below runs/."""

    def __post_init__(self) -> None:
        DataSettings.__post_init__(self)
        ModelSettings.__post_init__(self)
        tidy(self, "scorers", split_list(self.scorers))
        for name in ("run", "loader"):
            if isinstance(getattr(self, name), str):
                tidy(self, name, Path(getattr(self, name)))
        check_choices("scorers", self.scorers, SCORERS, auto=True)
        check_at_least("top", self.top, 1)
        check_at_least("batch", self.batch, 1)
        check_at_least("workers", self.workers, 0)
        check_device(self.device)
        check_choices("precision", (self.precision,), ("auto", "fp32", "bf16"))
        tidy(self, "risk", parse_share("risk", self.risk, most=0.5))
        if self.plain and self.precision == "bf16":
            raise RequestError("cannot use --precision bf16 with --plain: expected fp32, which is what plain means")
        if self.plain and self.memory is not None:
            raise RequestError(
                "cannot use --memory with --plain: expected no limit, since nothing is planned; leave it out"
            )
        if self.plain and (self.explain or self.fresh):
            given = "explain" if self.explain else "fresh"
            raise RequestError(
                f"cannot use --{given} with --plain: expected one of them, plain plans and remembers nothing"
            )
        if self.loader is not None and self.batch is not None and (self.workers is not None or not self.plain):
            given = "--batch and --workers" if self.plain else "--batch, the one setting that matters without --plain"
            raise RequestError(f"cannot use --loader with {given}: expected one of them, the file would change nothing")
        if (self.plain or self.exhaustive) and self.risk != type(self).risk:
            raise RequestError("cannot use --risk where no model is dropped: leave it out, or --plain and --exhaustive")
        self.memory_bytes()
        self._check_finals()
        self._check_place()

    def memory_bytes(self) -> int | None:
        """The memory asked for, in bytes."""
        return None if self.memory is None else parse_bytes("memory", self.memory)

    def model_settings(self) -> ModelSettings:
        """What is asked of a model when it is built."""
        return part_of(ModelSettings, self)

    def num_finalists(self) -> int | None:
        """How many were asked for; None to follow the budget."""
        return None if self.finals in (None, "auto") else int(str(self.finals))

    def parsed_finals_budget(self) -> tuple[float, float | None]:
        """A share, or seconds where they are not None."""
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(%|s|)\s*", self.finals_budget)
        value = float(found[1]) / (100 if found[2] == "%" else 1) if found else 0.0
        if found is None or not 0 < value <= (_MOST_SECONDS if found[2] == "s" else 1):
            raise RequestError(
                f"cannot use --finals-budget {self.finals_budget!r}: expected a share of up to 100%, such as 15% or 0.15, or "
                "seconds, such as 120s"
            )
        return (0.0, value) if found[2] == "s" else (value, None)

    def _check_place(self) -> None:
        check_place(self.on)
        given = "plain" if self.plain else "explain" if self.explain else "finals" if self.finals is not None else None
        if self.on != "local" and given is not None:
            raise RequestError(f"cannot use --{given} with --on {self.on}: expected --on local, leave one of them out")

    def _check_finals(self) -> None:
        if isinstance(self.finals_budget, float):
            tidy(self, "finals_budget", str(self.finals_budget))
        if isinstance(self.finals, int) and not isinstance(self.finals, bool):
            tidy(self, "finals", str(self.finals))
        if self.finals is None:
            if self.finals_budget != type(self).finals_budget:
                raise RequestError("cannot use --finals-budget without --finals: add --finals auto, or leave it out")
            return
        is_number = isinstance(self.finals, str) and re.fullmatch(r"[0-9]{1,4}", self.finals)
        if self.finals != "auto" and (not is_number or int(self.finals) < 2):
            raise RequestError(f"cannot use --finals {self.finals!r}: expected auto or a whole number of at least 2")
        check_text("finals-budget", self.finals_budget)
        self.parsed_finals_budget()
        if self.memory is not None:
            raise RequestError(
                "cannot use --memory with --finals: expected no limit, since fine-tuning takes what it needs; leave it out"
            )
        if self.explain:
            raise RequestError("cannot use --finals with --explain: expected a search that runs, leave one of them out")
