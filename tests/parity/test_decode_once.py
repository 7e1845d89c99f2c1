"""Decoding once gives every model the inputs that the plain path gives it: on a CPU to the last bit."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modelhound.data import Dataset, OwnTransform, Preprocessing, load_batches, open_dataset
from modelhound.data.decode.decoded import decode
from modelhound.data.decode.decoders import find_decoders
from modelhound.data.decode.decoding import decode_on_device
from modelhound.data.decode.resizing import resize_and_crop
from modelhound.data.preprocessing import Variant, make_transform
from modelhound.errors import DataError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def preprocessing(
    size: tuple[int, int] = (32, 32),
    interpolation: str = "bicubic",
    crop_fraction: float = 0.875,
    crop_mode: str = "center",
    mean: tuple[float, ...] = MEAN,
) -> Preprocessing:
    return Preprocessing(
        input_size=size,
        interpolation=interpolation,
        crop_fraction=crop_fraction,
        crop_mode=crop_mode,
        mean=mean,
        std=STD,
    )


FORMS = [
    preprocessing(),
    preprocessing(mean=(0.5, 0.5, 0.5)),  # the same pixels as the first
    preprocessing((32, 32), "bilinear", 0.95),
    preprocessing((48, 48), "bicubic", 1.0),
    preprocessing((48, 48), "bicubic", 1.0, "squash"),
    preprocessing((40, 40), "bicubic", 0.9, "border"),
    preprocessing((40, 40), "bicubic", 0.9, "border", (0.1, 0.2, 0.3)),
    preprocessing((30, 44), "bicubic", 0.875),  # not square: timm then takes bilinear
    preprocessing((96, 96), "lanczos", 1.0, "squash"),
    preprocessing((16, 16), "nearest", 1.0),
    preprocessing((24, 24), "box", 1.2),  # larger than the resized image: black around it
]
SIZES = [(80, 60), (60, 80), (9, 7), (32, 32), (33, 150), (150, 33), (1, 1), (64, 48)]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """JPEGs of all kinds, PNGs, and an EXIF orientation, in many sizes."""
    folder = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    exif = Image.Exif()
    exif[0x0112] = 6
    for number in range(40):
        width, height = SIZES[number % len(SIZES)]
        row, column = np.mgrid[0:height, 0:width]
        waves = np.stack([128 + 90 * np.sin(column / 5 + row / 9), 2 * row + column, 200 - row], -1)
        image = Image.fromarray((waves + generator.normal(0, 15, waves.shape)).clip(0, 255).astype(np.uint8))
        path = folder / "ab"[number % 2] / f"{number:02}.{('jpg', 'png')[number % 5 == 4]}"
        path.parent.mkdir(exist_ok=True)
        if path.suffix == ".png":
            image.save(path)
        else:
            image.convert(("RGB", "L", "CMYK", "RGB")[number % 4]).save(
                path,
                quality=90,
                subsampling=number % 3,
                progressive=number % 7 == 0,
                **({"exif": exif} if number % 3 else {}),
            )
    return open_dataset(str(folder))


def plain(dataset: Dataset, form: Preprocessing | OwnTransform) -> torch.Tensor:
    return torch.cat([batch.inputs for batch in load_batches(dataset, form, batch=16, workers=0)])  # type: ignore[misc]


def name_of(form: Preprocessing) -> str:
    return Variant.of(form).name + f"-{form.mean[0]}"


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_inputs_equal_those_of_the_plain_path_to_the_last_bit(photos: Dataset, form: Preprocessing) -> None:
    chunk = decode(photos, range(len(photos)), [form])
    assert torch.equal(chunk.inputs(form, 0, len(photos)), plain(photos, form))


def test_all_forms_at_once_give_each_its_own(photos: Dataset) -> None:
    chunk = decode(photos, range(len(photos)), FORMS, threads=3)
    assert len(chunk.pixels) == len(FORMS) - 1
    for form in FORMS:
        assert torch.equal(chunk.inputs(form, 0, len(photos)), plain(photos, form))


def test_any_items_in_any_order(photos: Dataset) -> None:
    chunk = decode(photos, [7, 3, 31], FORMS[:1])
    assert torch.equal(chunk.inputs(FORMS[0], 0, 3), plain(photos, FORMS[0])[[7, 3, 31]])
    assert torch.equal(chunk.inputs(FORMS[0], 1, 2), plain(photos, FORMS[0])[[3]])


def test_channels_last_and_bf16_hold_the_same_values(photos: Dataset) -> None:
    chunk = decode(photos, range(10), FORMS[:1])
    inputs = chunk.inputs(FORMS[0], 0, 10, dtype=torch.bfloat16, channels_last=True)
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(inputs, plain(photos, FORMS[0])[:10].bfloat16())


def test_embedded_items_need_no_decoder() -> None:
    digits = open_dataset("digits", limit=40)
    chunk = decode(digits, range(len(digits)), FORMS[:3])
    assert chunk.choice is None
    for form in FORMS[:3]:
        assert torch.equal(chunk.inputs(form, 0, len(digits)), plain(digits, form))


def own_transform(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image.resize((20, 10))).copy()).permute(2, 0, 1).float().sqrt()


def test_a_users_own_transform_gets_whole_images(photos: Dataset) -> None:
    own = OwnTransform(transform=own_transform, input_size=(10, 20))
    threads = torch.get_num_threads()
    chunk = decode(photos, range(len(photos)), [FORMS[0], own])
    assert torch.equal(chunk.inputs(own, 0, len(photos)), plain(photos, own))
    assert torch.equal(chunk.inputs(FORMS[0], 0, len(photos)), plain(photos, FORMS[0]))
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("form", FORMS, ids=name_of)
def test_the_way_through_a_device_gives_the_same_pixels(photos: Dataset, form: Preprocessing) -> None:
    """With the CPU as the device: images are decoded by Pillow, but grouped, resized and cropped as on a GPU."""
    (pillow, *_), variant = find_decoders(), Variant.of(form)
    made = decode_on_device(
        photos, range(len(photos)), [variant], pillow, "cpu", 2, lambda done: None, keep_on_host=False
    )
    assert torch.equal(made[variant], decode(photos, range(len(photos)), [form]).pixels[variant])


SHAPES: Sequence[tuple[int, int]] = [(500, 375), (333, 500), (224, 224), (17, 40), (64, 300), (640, 100)]


@pytest.mark.parametrize("size", SHAPES)
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "lanczos", "box", "nearest"])
def test_resizing_by_matrices_is_resizing_by_pillow(size: tuple[int, int], interpolation: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    for crop_mode in ("center", "squash", "border"):
        form = preprocessing((96, 96), interpolation, 0.875, crop_mode, (0, 0, 0))
        expected = make_transform(
            Preprocessing(
                input_size=(96, 96),
                interpolation=interpolation,
                crop_fraction=0.875,
                crop_mode=crop_mode,
                mean=(0, 0, 0),
                std=(1, 1, 1),
            )
        )(Image.fromarray(pixels))
        image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        exact = resize_and_crop(image, Variant.of(form))[0].permute(2, 0, 1)
        assert torch.equal(exact.float() / 255, expected)
        single = resize_and_crop(image, Variant.of(form), precision=torch.float32)[0].permute(2, 0, 1)
        assert (single.int() - exact.int()).abs().float().mean() < 0.01


def test_a_damaged_file_has_the_error_of_the_plain_path(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (60, 40), "red").save(file, "JPEG")
    for number in range(8):
        path = tmp_path / "items" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
    dataset = open_dataset(str(tmp_path / "items"))
    Path(dataset.name, dataset.item_names[5]).write_bytes(file.getvalue()[:300])
    errors = []
    for attempt in (
        lambda: list(load_batches(dataset, FORMS[0], batch=4, workers=0)),
        lambda: decode(dataset, range(8), FORMS),
    ):
        with pytest.raises(Exception, match=r"truncated") as caught:
            attempt()  # type: ignore[no-untyped-call]
        assert isinstance(caught.value, DataError)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert repr(dataset.item_names[5]) in errors[0]
