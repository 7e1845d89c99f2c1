"""What can be asked of `hound breakeven`."""

import re
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

from modelhound.errors import RequestError
from modelhound.settings.checks import (
    check_at_least,
    check_choices,
    check_device,
    check_number,
    check_once,
    split_list,
    tidy,
    whole_numbers,
)
from modelhound.settings.data import DataSettings
from modelhound.settings.models import ModelSettings

__all__ = ["ASSUMABLE", "BREAKEVEN_MODELS", "BreakevenSettings"]

BREAKEVEN_MODELS = {"image": ("zoo:resnet-shapes", "zoo:vit-rotation"), "text": ("hf:google-bert/bert-base-uncased",)}
"""What --models auto means here: small enough to be fine-tuned ten times over on a CPU."""

ASSUMABLE = ("items", "epochs", "models", "device", "model")
"""What a result can be extrapolated to: other counts; a device or a mean model that is so many times slower."""

_SCENARIO = ("epochs", "sets", "share")
_MODES = ("full", "head", "cached")


@dataclass(frozen=True)
class BreakevenSettings(ModelSettings, DataSettings):
    """When does searching take longer than the training it is for?"""

    _: KW_ONLY

    models: tuple[str, ...] = ("auto",)
    """Models to fine-tune and to extract features with, as in `hound search`; auto is two small networks of the zoo."""

    sizes: tuple[str, ...] = ("100", "1000", "4000")
    """Numbers of items, of which a fifth is tested on; one that is larger than the data set means all of it."""

    epochs: int = 10
    """Of each training."""

    measured_epochs: int | None = None
    """Run only so many of them, and take the mean of these for the others; the default runs all."""

    modes: tuple[str, ...] = ("full", "head", "cached")
    """Kinds of training: every weight; the head on the frozen network; the head on features computed once."""

    pool: tuple[str, ...] = ("auto",)
    """Models to search over, to see how time grows with their number; auto is zoo:* for images, else --models; or none."""

    counts: tuple[str, ...] = ("1", "2", "4", "8", "16")
    """How many models of the pool to search over."""

    scenario: tuple[str, ...] = ()
    """Your own, beside S1 and S2: epochs=20-30,sets=5,share=0.5, where share is what pruning leaves of the work of all sets."""

    assume: tuple[str, ...] = ()
    """Extrapolate: items=40000,epochs=20,models=100,device=1.1,model=1.5, each a number or a range such as 10-15; the last
    two say how many times slower. Leave one out to switch it off."""

    price_per_hour: float | None = None
    """What an hour of this machine costs: the same in money."""

    watts: float | None = None
    """What this machine draws under load: the same in watt-hours."""

    batch: int | None = None
    """Items per batch; the default suits the device and the size of the items."""

    repeats: int = 2
    """How often extracting features is timed."""

    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Of the arithmetic; auto is fp32 on a CPU and bf16 on a GPU, where the plain loop stays in fp32."""

    workers: int | None = None
    """Processes that load items; the default follows cores and items."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""

    run: Path | None = None
    """Folder for the results; the default is named after the request, below runs/."""

    def __post_init__(self) -> None:
        DataSettings.__post_init__(self)
        ModelSettings.__post_init__(self)
        for name in ("modes", "pool", "scenario", "assume"):
            tidy(self, name, split_list(getattr(self, name)))
        for name, least in (("sizes", 4), ("counts", 1)):
            numbers = whole_numbers(name, getattr(self, name), least=least, such_as="100,1000")
            tidy(self, name, tuple(map(str, numbers)))
        if isinstance(self.run, str):
            tidy(self, "run", Path(self.run))
        if self.pool == ("none",):
            tidy(self, "pool", ())
        self._check()

    def num_items(self) -> tuple[int, ...]:
        return tuple(sorted(map(int, self.sizes)))

    def num_models(self) -> tuple[int, ...]:
        return tuple(sorted(map(int, self.counts)))

    def epochs_run(self) -> int:
        return min(self.epochs, self.measured_epochs or self.epochs)

    def own_scenario(self) -> dict[str, tuple[float, float]]:
        """Both ends of epochs, and twice the same of sets and share; as far as given."""
        return _pairs("scenario", self.scenario, _SCENARIO)

    def assumptions(self) -> dict[str, tuple[float, float]]:
        """Both ends of each."""
        return _pairs("assume", self.assume, ASSUMABLE)

    def _check(self) -> None:
        for name, least in (("epochs", 1), ("measured_epochs", 1), ("batch", 1), ("repeats", 1), ("workers", 0)):
            check_at_least(name.replace("_", "-"), getattr(self, name), least)
        check_choices("modes", self.modes, _MODES)
        check_choices("precision", (self.precision,), ("auto", "fp32", "bf16"))
        check_device(self.device)
        if self.layers == "best":
            raise RequestError("cannot use --layers best: expected one vector per text to train on, use last or mean")
        if "full" not in self.modes:
            raise RequestError(
                "cannot leave full out of --modes: expected it, since all ratios are to full fine-tuning"
            )
        for name in ("price_per_hour", "watts"):
            if getattr(self, name) is not None:
                check_number(name.replace("_", "-"), getattr(self, name), least=0, most=1e9, above_least=True)
        if self.measured_epochs is not None and self.measured_epochs > self.epochs:
            raise RequestError(
                f"cannot use --measured-epochs {self.measured_epochs} of {self.epochs} epochs: expected no more of them, "
                "leave it out to run all"
            )
        if not self.pool and self.counts != type(self).counts:
            raise RequestError(
                "cannot use --counts with --pool none: expected models to search over, leave one of them out"
            )
        scenario = self.own_scenario()
        if scenario and "epochs" not in scenario:
            raise RequestError(f"cannot use --scenario {','.join(self.scenario)!r}: expected epochs=N in it")
        ranges = [name for name, (low, high) in scenario.items() if name != "epochs" and low != high]
        if ranges:
            raise RequestError(
                f"cannot use a range of {ranges[0]} in --scenario: expected one number, epochs may be a range"
            )
        if not 0 < scenario.get("share", (1, 1))[0] <= 1:
            raise RequestError(
                f"cannot use a share of {scenario['share'][0]:g} in --scenario: expected more than 0, at most 1"
            )
        self.assumptions()


def _pairs(option: str, given: tuple[str, ...], allowed: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """NAME=VALUE or NAME=LOW-HIGH, taken apart; a share may be written 50%, as everywhere."""
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        number = value.removesuffix("%") if name == "share" else value
        ends = re.fullmatch(r"(\d{1,15}(?:\.\d+)?)(?:-(\d{1,15}(?:\.\d+)?))?", number)
        if name not in allowed or ends is None or float(ends[1]) <= 0 or float(ends[2] or ends[1]) < float(ends[1]):
            raise RequestError(
                f"cannot use --{option} {text!r}: expected NAME=NUMBER or NAME=LOW-HIGH above 0 with a name of "
                f"{', '.join(allowed)}"
            )
        whole = 1 if number == value else 100
        found[name] = (float(ends[1]) / whole, float(ends[2] or ends[1]) / whole)
    check_once(option, [text.partition("=")[0] for text in given])
    return found
