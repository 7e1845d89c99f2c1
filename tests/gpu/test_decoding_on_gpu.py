"""Decoding once on a CUDA device gives nearly the pixels that the CPU gives, and all of its promises hold there too."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modelhound.data import Dataset, OwnTransform, Preprocessing, open_dataset
from modelhound.data.decode.decoded import DecodedChunk, decode
from modelhound.data.decode.decoders import Choice, Decoder, find_decoders
from modelhound.data.decode.resizing import resize_and_crop
from modelhound.data.images import decode_image
from modelhound.data.preprocessing import Variant
from modelhound.data.source import UnreadableItemError
from modelhound.errors import DataError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]

DEVICE = "cuda:0"
TOLERANCE = 1.0  # grey levels, on average


def form(size: int = 96, interpolation: str = "bicubic", crop_mode: str = "center", mean: float = 0.5) -> Preprocessing:
    return Preprocessing(
        input_size=(size, size),
        interpolation=interpolation,
        crop_fraction=0.9,
        crop_mode=crop_mode,
        mean=(mean, 0.4, 0.3),
        std=(0.2, 0.3, 0.4),
    )


FORMS = [form(), form(mean=0.1), form(64, "bilinear", "squash"), form(128, "bicubic", "border")]


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    row, column = np.mgrid[0:height, 0:width]
    waves = [128 + 99 * np.sin(column / 17 + row / 29 + seed), 99 + 90 * np.cos(row / 17), 200 - 0.5 * row]
    noise = np.random.default_rng(seed).normal(0, 8, (height, width, 1))
    return Image.fromarray((np.stack(waves, -1) + noise).clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Dataset:
    exif = Image.Exif()
    exif[0x0112] = 8
    for number in range(60):
        image = photo((300, 200, 333)[number % 3], (200, 300, 250)[number % 3], number)
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number:02}.{('jpg', 'png')[number % 10 == 9]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".png":
            image.save(path)
        else:
            options = {"exif": exif} if number % 7 == 0 else {}
            image.convert(("RGB", "RGB", "L", "CMYK")[number % 4]).save(
                path, quality=90, subsampling=number % 3, progressive=number % 5 == 0, **options
            )
    return open_dataset(str(tmp_path / "photos"))


@pytest.fixture
def nvjpeg() -> Decoder:
    found = [each for each in find_decoders(DEVICE) if each.device != "cpu"]
    return found[0] if found else pytest.skip("neither torchvision nor torchcodec brings nvJPEG here")


def assert_near(fast: DecodedChunk, plain: DecodedChunk) -> None:
    for variant, pixels in plain.pixels.items():
        gaps = (fast.pixels[variant].cpu().int() - pixels.int()).abs().float()
        assert gaps.mean() < TOLERANCE
        assert gaps.flatten(1).mean(1).max() < 3 * TOLERANCE  # of no single image much more


@pytest.mark.parametrize("keep_on_host", [False, True])
def test_pixels_are_near_those_of_the_cpu_whoever_decodes(photos: Dataset, keep_on_host: bool) -> None:
    plain = decode(photos, range(60), FORMS)
    for decoder in find_decoders(DEVICE):
        choice = Choice(decoder=decoder, files_per_second={})
        fast = decode(photos, range(60), FORMS, device=DEVICE, keep_on_host=keep_on_host, choice=choice)
        assert all(each.is_cuda != keep_on_host for each in fast.pixels.values())
        assert all(each.is_pinned() == keep_on_host for each in fast.pixels.values())
        assert_near(fast, plain)
        if decoder.device == "cpu":  # the same images, resized in fp64: nothing may differ but fp32 on other devices
            for variant, pixels in plain.pixels.items():
                assert (fast.pixels[variant].cpu().int() - pixels.int()).abs().max() <= 2


def test_inputs_are_near_those_of_the_cpu_in_any_type_and_layout(photos: Dataset) -> None:
    plain, fast = decode(photos, range(60), FORMS), decode(photos, range(60), FORMS, device=DEVICE)
    for each in FORMS:
        expected = plain.inputs(each, 5, 50)
        made = fast.inputs(each, 5, 50)
        assert made.is_cuda
        assert made.is_contiguous()
        assert (made.cpu() - expected).abs().mean() < TOLERANCE / 255 / min(each.std)
        half = fast.inputs(each, 5, 50, dtype=torch.bfloat16, channels_last=True)
        assert half.dtype == torch.bfloat16
        assert half.is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(half.float(), made, rtol=2**-8, atol=1e-3)


def test_normalising_on_the_device_differs_by_rounding_alone() -> None:
    digits = open_dataset("digits", limit=40)
    plain, fast = decode(digits, range(40), FORMS), decode(digits, range(40), FORMS, device=DEVICE)
    for each in FORMS:
        torch.testing.assert_close(fast.inputs(each, 0, 40).cpu(), plain.inputs(each, 0, 40), rtol=0, atol=3e-6)


@pytest.mark.parametrize("size", [(500, 375), (333, 500), (97, 61), (30, 300)])
def test_resizing_on_the_device_equals_resizing_on_the_cpu(size: tuple[int, int]) -> None:
    image = torch.from_numpy(np.array(photo(*size))).permute(2, 0, 1)[None]
    for each in FORMS:
        for precision, most in ((torch.float64, 0.0), (torch.float32, 0.01)):
            made = resize_and_crop(image.to(DEVICE), Variant.of(each), precision=precision)
            gap = (made.cpu().int() - resize_and_crop(image, Variant.of(each)).int()).abs().float().mean()
            assert gap <= most


@pytest.mark.parametrize("bad", [b"", b"no image", encode(photo(64, 48))[:700]], ids=["empty", "text", "cut"])
def test_one_bad_file_is_an_error_in_its_place(nvjpeg: Decoder, bad: bytes) -> None:
    good = encode(photo(64, 48))
    first, second, third = nvjpeg.decode([good, bad, good])
    assert isinstance(second, UnreadableItemError)
    with pytest.raises(UnreadableItemError) as caught:
        decode_image(bad)
    assert str(second) == str(caught.value)
    assert isinstance(first, torch.Tensor)
    assert isinstance(third, torch.Tensor)
    assert torch.equal(first, third)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_come_out_upright(nvjpeg: Decoder, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(photo(60, 40), quality=95, subsampling=0, exif=exif)
    (decoded,) = nvjpeg.decode([data])
    assert isinstance(decoded, torch.Tensor)
    expected = torch.from_numpy(np.array(decode_image(data))).permute(2, 0, 1)
    assert decoded.shape == expected.shape
    assert (decoded.cpu().int() - expected.int()).abs().float().mean() < TOLERANCE


def test_a_file_that_breaks_after_the_check_is_named(photos: Dataset) -> None:
    path = Path(photos.name, photos.item_names[33])
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DataError) as caught:
        decode(photos, range(60), FORMS, device=DEVICE)
    assert repr(photos.item_names[33]) in str(caught.value)


def own_transform(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((20, 10)))).permute(2, 0, 1).float()


def test_a_users_own_transform_gives_the_same_as_on_the_cpu(photos: Dataset) -> None:
    own = OwnTransform(transform=own_transform, input_size=(10, 20))
    plain, fast = decode(photos, range(60), [own, FORMS[0]]), decode(photos, range(60), [own, FORMS[0]], device=DEVICE)
    assert torch.equal(fast.inputs(own, 0, 60).cpu(), plain.inputs(own, 0, 60))
    assert torch.equal(fast.pixels[Variant.of(FORMS[0])].cpu(), plain.pixels[Variant.of(FORMS[0])])
