"""What can be asked of `hound search`."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from modelhound.errors import RequestError
from modelhound.settings.checks import check_at_least, check_choices, check_text, parse_bytes, split_list, tidy
from modelhound.settings.data import DataSettings
from modelhound.settings.models import ModelSettings
from modelhound.settings.scorers import SCORERS

__all__ = ["DEFAULT_TOP", "SearchSettings"]

DEFAULT_TOP = 5
"""How many of the best models a search makes sure of unless told."""


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

    explain: bool = False
    """Say what would be run, what is shared and how long it would take, and stop there."""

    fresh: bool = False
    """Compute every feature anew and remember none; otherwise those of earlier searches are used and new ones kept."""

    plain: bool = False
    """One model after the other, nothing shared, nothing dropped: slow, for comparison."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the networks' arithmetic; auto is fp32 on a CPU and bf16 on a GPU."""

    memory: str | None = None
    """Memory of the device to use at most, such as 4GB; the default is most of what is free."""

    batch: int | None = None
    """Items per forward pass; the default suits the device and the size of the items."""

    workers: int | None = None
    """Threads that decode items, with --plain processes that load them; the default follows the number of cores and items."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    run: Path | None = None
    """Folder for the results; the default is named after the request, below runs/."""

    def __post_init__(self) -> None:
        DataSettings.__post_init__(self)
        ModelSettings.__post_init__(self)
        tidy(self, "scorers", split_list(self.scorers))
        if isinstance(self.run, str):
            tidy(self, "run", Path(self.run))
        if self.scorers != ("auto",):
            check_choices("scorers", self.scorers, SCORERS)
        check_at_least("top", self.top, 1)
        check_at_least("batch", self.batch, 1)
        check_at_least("workers", self.workers, 0)
        check_text("device", self.device)
        check_choices("precision", (self.precision,), ("auto", "fp32", "bf16"))
        if not isinstance(self.risk, int | float) or not 0 <= self.risk <= 0.5:
            raise RequestError(f"cannot use --risk {self.risk!r}: expected a number from 0 to 0.5, such as 0.01")
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
        if (self.plain or self.exhaustive) and self.risk != type(self).risk:
            raise RequestError("cannot use --risk where no model is dropped: leave it out, or --plain and --exhaustive")
        self.memory_bytes()

    def memory_bytes(self) -> int | None:
        """The memory asked for, in bytes."""
        return None if self.memory is None else parse_bytes("memory", self.memory)
