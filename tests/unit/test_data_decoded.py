import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from modelhound.data import Dataset, OwnTransform, Preprocessing, Tokenising, load_batches, open_dataset
from modelhound.data.decode.decoded import decode
from modelhound.data.normalising import normalise_at_once
from modelhound.data.preparing import prepare_items
from modelhound.data.preprocessing import Variant
from modelhound.errors import DataError, ModelError
from modelhound.records import Progress, silent

NUM_ITEMS = 50


def preprocessing(size: int = 24, mean: float = 0.5) -> Preprocessing:
    return Preprocessing(
        input_size=(size, size),
        interpolation="bicubic",
        crop_fraction=0.9,
        crop_mode="center",
        mean=(mean, 0.4, 0.3),
        std=(0.2, 0.3, 0.4),
    )


@pytest.fixture
def photos(tmp_path: Path) -> Dataset:
    generator = np.random.default_rng(0)
    for number in range(NUM_ITEMS):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(generator.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(path)
    return open_dataset(str(tmp_path / "photos"))


def decoding_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("decode")]


@dataclass(frozen=True)
class CountingReader:
    """Counts how often each item is read."""

    inner: Any
    counts: dict[int, int]

    def read_bytes(self, position: int) -> bytes:
        self.counts[position] = self.counts.get(position, 0) + 1
        data: bytes = self.inner.read_bytes(position)
        return data


def test_a_chunk_takes_a_byte_for_each_value_of_each_variant(photos: Dataset) -> None:
    forms = [preprocessing(24), preprocessing(24, mean=0.1), preprocessing(32)]
    chunk = decode(photos, range(20), forms)
    assert len(chunk) == 20
    assert chunk.num_bytes == 20 * 3 * (24 * 24 + 32 * 32)
    assert all(each.dtype == torch.uint8 and each.shape[-1] == 3 for each in chunk.pixels.values())


def test_every_item_is_read_once_however_many_models_there_are(photos: Dataset) -> None:
    counts: dict[int, int] = {}
    counted = replace(photos, reader=CountingReader(photos.reader, counts))
    first = decode(counted, range(10), [preprocessing()])
    counts.clear()
    decode(counted, range(NUM_ITEMS), [preprocessing(size) for size in range(8, 40, 4)], choice=first.choice)
    assert counts == dict.fromkeys(range(NUM_ITEMS), 1)


def test_the_choice_of_a_decoder_comes_with_its_reasons(photos: Dataset) -> None:
    choice = decode(photos, range(NUM_ITEMS), [preprocessing()]).choice
    assert choice is not None
    assert all(rate > 0 for rate in choice.files_per_second.values())


def test_prepared_items_are_copied_and_not_decoded(photos: Dataset, tmp_path: Path) -> None:
    forms = [preprocessing(24), preprocessing(32)]
    folder = tmp_path / "prepared"
    prepare_items(photos, folder, [Variant.of(form) for form in forms], glance="", watch=silent)
    prepared = open_dataset(str(folder))
    chunk = decode(prepared, range(NUM_ITEMS), [*forms, preprocessing(20)])
    original = decode(photos, range(NUM_ITEMS), forms)
    for form in forms:
        assert torch.equal(chunk.pixels[Variant.of(form)], original.pixels[Variant.of(form)])
    expected = [batch.inputs for batch in load_batches(prepared, preprocessing(20), batch=50, workers=0)]
    assert torch.equal(chunk.inputs(preprocessing(20), 0, 50), expected[0])  # type: ignore[arg-type]


def test_a_broken_prepared_folder_is_a_data_error(photos: Dataset, tmp_path: Path) -> None:
    prepare_items(photos, tmp_path / "prepared", [Variant.of(preprocessing())], glance="", watch=silent)
    prepared = open_dataset(str(tmp_path / "prepared"))
    next((tmp_path / "prepared").glob("*/shard-*.bin")).write_bytes(b"")
    with pytest.raises(DataError, match="expected whole prepared items"):
        decode(prepared, range(NUM_ITEMS), [preprocessing()])


def test_an_item_that_vanishes_is_named(photos: Dataset) -> None:
    Path(photos.name, photos.item_names[33]).unlink()
    with pytest.raises(DataError, match="no such file") as caught:
        decode(photos, range(NUM_ITEMS), [preprocessing()])
    assert repr(photos.item_names[33]) in str(caught.value)
    assert not decoding_threads()


def test_a_transform_that_fails_is_told_to_whoever_wants_it_and_the_other_forms_are_there(photos: Dataset) -> None:
    def fail(image: Image.Image) -> torch.Tensor:
        raise ZeroDivisionError("by zero")

    def keep(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1).float()

    failing, keeping = (OwnTransform(transform=each, input_size=(4, 4)) for each in (fail, keep))
    chunk = decode(photos, range(NUM_ITEMS), [failing, preprocessing(), keeping])
    with pytest.raises(ModelError, match=r"cannot prepare .*jpg': expected .* but ZeroDivisionError: by zero; mend"):
        chunk.inputs(failing, 0, 2)
    with pytest.raises(
        ModelError, match=r"expected \(3, 4, 4\) of its own transform, .* but it made \(3, [0-9]+, [0-9]+\)"
    ):
        chunk.inputs(keeping, 0, 2)
    alone = decode(photos, range(NUM_ITEMS), [preprocessing()])
    assert torch.equal(chunk.inputs(preprocessing(), 0, NUM_ITEMS), alone.inputs(preprocessing(), 0, NUM_ITEMS))


def test_models_and_data_of_different_kinds_are_refused(photos: Dataset, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot feed it images: expected texts"):
        decode(photos, range(3), [Tokenising(folder="", max_tokens=3, fingerprint="")])
    (tmp_path / "texts.csv").write_text("text,label\none,a\ntwo,b\nthree,a\nfour,b\n")
    with pytest.raises(ModelError, match="cannot feed it texts: expected images"):
        decode(open_dataset(str(tmp_path / "texts.csv")), range(3), [preprocessing()])


def test_progress_is_told_from_none_to_all(photos: Dataset) -> None:
    seen: list[Progress] = []
    decode(photos, range(NUM_ITEMS), [preprocessing()], watch=seen.append)
    assert [each.done for each in seen] == sorted(each.done for each in seen)
    assert {each.total for each in seen} == {NUM_ITEMS}
    assert (seen[0].done, seen[-1].done) == (0, NUM_ITEMS)


def test_normalising_at_once_is_normalising_step_by_step_but_for_rounding() -> None:
    pixels = torch.arange(256, dtype=torch.uint8)[:, None, None, None].expand(256, 24, 24, 3)
    form = preprocessing()
    mean, std = torch.tensor(form.mean).view(3, 1, 1), torch.tensor(form.std).view(3, 1, 1)
    expected = (pixels.permute(0, 3, 1, 2).float() / 255 - mean) / std
    made = normalise_at_once(pixels, form, torch.float32, torch.contiguous_format)
    torch.testing.assert_close(made, expected, rtol=0, atol=2e-6)
    half = normalise_at_once(pixels, form, torch.bfloat16, torch.channels_last)
    assert half.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(half.float(), expected, rtol=2**-8, atol=2e-3)
