"""What feeding takes: items are decoded once, however many forms they are wanted in, and sizes decide where nobody measured."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modelhound.data import Dataset, OwnTransform, Tokenising, open_dataset
from modelhound.data.source import UnreadableItemError
from modelhound.features import calibrating, feed_times
from modelhound.features.feed_times import estimate_feed, time_feed, usual_size
from modelhound.features.many import Session
from modelhound.models import find_models
from modelhound.plan import forecast_plan
from modelhound.settings import ModelSettings, PrepareSettings
from modelhound.verbs.prepare import run_prepare
from small_form import FORM
from tiny_encoders import write_encoder

CORES = 2


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_times, "count_cores", lambda: CORES)


def images(folder: Path, side: int) -> Dataset:
    generator = np.random.default_rng(side)
    for label in ("one", "other"):
        (folder / label).mkdir(parents=True)
        for place in range(5):
            pixels = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / label / f"{place}.png")
    return open_dataset(str(folder))


class Clock:
    """Stands still, unless somebody works."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def work(self, seconds: float) -> None:
        self.seconds += seconds

    def resize(self, seconds: float) -> Callable[[Any], torch.Tensor]:
        def transform(image: Image.Image) -> torch.Tensor:
            self.work(seconds)
            return torch.zeros(3, 4, 4)

        return transform


class SlowReader:
    """Takes 3 seconds to read and decode an item."""

    def __init__(self, reader: Any, clock: Clock) -> None:
        self._reader, self._clock = reader, clock

    def read(self, position: int) -> Any:
        self._clock.work(3.0)
        return self._reader.read(position)

    def select(self, positions: Any) -> "SlowReader":
        return SlowReader(self._reader.select(positions), self._clock)


def test_decoding_is_measured_once_and_every_form_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, dataset = Clock(), images(tmp_path / "images", 20)
    slow = dataclasses.replace(dataset, reader=SlowReader(dataset.reader, clock))
    monkeypatch.setattr(calibrating, "seconds_now", lambda: clock.seconds)
    small, large = (OwnTransform(transform=clock.resize(each), input_size=(4, 4)) for each in (0.5, 2.0))
    times = time_feed(slow, [small, FORM, large], device="cpu", threads=1)
    assert times.decode_seconds == 3.0
    assert times.of({"small": small, "large": large, "form": FORM}) == {"small": 0.5, "large": 2.0, "form": 0.0}


def test_forms_that_differ_in_normalising_alone_are_resized_once(tmp_path: Path) -> None:
    other = dataclasses.replace(FORM, mean=(0.1, 0.2, 0.3))
    times = estimate_feed(images(tmp_path / "images", 20), [FORM, other], size=400, device="cpu")
    both = times.of({"one": FORM, "other": other})
    assert both["one"] > both["other"] == 0.0
    assert times.of({"other": other})["other"] == both["one"]  # by itself, it pays


def test_what_is_not_measured_is_estimated_by_pixels(tmp_path: Path) -> None:
    small, large = images(tmp_path / "small", 20), images(tmp_path / "large", 200)
    assert (usual_size(small), usual_size(large)) == (400, 40_000)
    wide = dataclasses.replace(FORM, input_size=(160, 160))
    low, high = (estimate_feed(each, [FORM, wide], size=usual_size(each), device="cpu") for each in (small, large))
    per_pixel = (high.decode_seconds - low.decode_seconds) / (40_000 - 400)
    assert per_pixel == pytest.approx(1e-8 / CORES)
    one, other = low.of({"one": FORM, "other": wide}).values()
    assert other - one == pytest.approx((160 * 160 - 16 * 16) * 2e-8 / CORES)  # made of the same image


def test_items_that_nobody_can_look_at_are_taken_for_photographs(tmp_path: Path) -> None:
    class Gone:
        def read(self, position: int) -> Image.Image:
            raise UnreadableItemError("it is gone")

    dataset = images(tmp_path / "images", 20)
    assert usual_size(dataclasses.replace(dataset, reader=Gone())) == 200_000  # type: ignore[arg-type]


def test_prepared_items_are_not_decoded(tmp_path: Path) -> None:
    images(tmp_path / "images", 20)
    run_prepare(PrepareSettings(str(tmp_path / "images"), models=("zoo:resnet-shapes",), out=tmp_path / "made"))
    dataset = open_dataset(str(tmp_path / "made"))
    with Session(dataset, ModelSettings(), seed=0, device="cpu", remember=False) as session:
        session.survey(dict.fromkeys(find_models(["zoo:resnet-shapes"]), ""), failed=fail)
        (form,) = (each.form for each in session.specimens.values())
    for times in (
        estimate_feed(dataset, [form], size=usual_size(dataset), device="cpu"),
        time_feed(dataset, [form], device="cpu", threads=1),
    ):
        assert times.decode_seconds == 0.0
        assert times.of({"": form})[""] > 0
    resized = estimate_feed(dataset, [form, FORM], size=usual_size(dataset), device="cpu")
    assert resized.decode_seconds > 0  # the largest that is there is read for it


def fail(model: str, phase: str, error: Exception) -> None:
    raise AssertionError(f"{model} in {phase}") from error


def test_texts_are_tokenised_by_each_tokenizer_and_not_decoded(tmp_path: Path) -> None:
    dataset = open_dataset("sms", limit=40)
    folder = str(write_encoder(tmp_path / "encoder"))
    short, long = (Tokenising(folder=folder, max_tokens=each, fingerprint="a") for each in (8, 32))
    for times in (
        estimate_feed(dataset, [short, long], size=usual_size(dataset), device="cpu"),
        time_feed(dataset, [short, long], device="cpu", threads=1),
    ):
        assert times.decode_seconds == 0.0
        assert all(seconds > 0 for seconds in times.of({"short": short, "long": long}).values())
    assert usual_size(dataset) == np.median([sum(map(len, dataset.read(place))) for place in range(0, 40, 8)])  # type: ignore[arg-type]


@pytest.mark.parametrize("measured", [False, True])
def test_a_forecast_decodes_once_for_networks_of_several_sizes(measured: bool) -> None:
    models = ["zoo:resnet-shapes", "zoo:resnet-textures"]  # 32 and 40 pixels
    with Session(open_dataset("fashion", limit=20), ModelSettings(), seed=0, device="cpu", remember=False) as session:
        session.survey(dict.fromkeys(find_models(models), ""), failed=fail)
        if measured:
            session.calibrate(failed=fail)
        both, one = (session.planner.costs(some) for some in (models, models[:1]))
        seconds = forecast_plan(session.planner.plan(models, range(20))).decode_seconds
    assert both.decode_seconds_per_item == one.decode_seconds_per_item > 0
    assert len(both.form_seconds_per_item) == 2
    assert one.form_seconds_per_item.items() <= both.form_seconds_per_item.items()
    assert seconds == pytest.approx(20 * (both.decode_seconds_per_item + sum(both.form_seconds_per_item.values())))
