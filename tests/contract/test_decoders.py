"""What every decoder promises: the pixels of `decode_image`, whatever the file is. A new decoder adds itself to DECODERS."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from modelhound.data.decode.decoders import Decoder, _as_tensor, _OnDevice, choose_decoder, find_decoders
from modelhound.data.images import decode_image
from modelhound.data.source import UnreadableItemError

SIZES = [(1, 1), (3, 5), (16, 16), (17, 31), (33, 99), (100, 75), (101, 77)]


def batched_on_the_host() -> Decoder:
    """The class behind nvJPEG with simplejpeg as its engine: all of its care for odd files can be seen without a GPU."""
    simplejpeg = pytest.importorskip("simplejpeg")
    trusted = next(each for each in find_decoders() if each.name == "simplejpeg").trusted  # type: ignore[attr-defined]

    def decode_batch(encoded: list[torch.Tensor], /, *, device: str) -> list[torch.Tensor]:
        try:
            decoded = [simplejpeg.decode_jpeg(each.numpy().tobytes(), "RGB") for each in encoded]
        except ValueError as error:
            raise RuntimeError(str(error)) from error
        return [torch.from_numpy(each).permute(2, 0, 1) for each in decoded]

    return _OnDevice("batched", "cpu", trusted, decode_batch)


def find(name: str) -> Callable[[], Decoder]:
    def finder() -> Decoder:
        found = [each for each in find_decoders() if each.name == name]
        return found[0] if found else pytest.skip(f"{name} does not load here")

    return finder


DECODERS = {"Pillow": find("Pillow"), "simplejpeg": find("simplejpeg"), "batched": batched_on_the_host}


@pytest.fixture(params=DECODERS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return DECODERS[request.param]()


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    row, column = np.mgrid[0:height, 0:width]
    waves = np.stack(
        [128 + 99 * np.sin(column / 17 + row / 29), 99 + 90 * np.cos(row / 7), (3 * row + column) % 256], -1
    )
    noise = np.random.default_rng(seed).normal(0, 20, waves.shape)
    return Image.fromarray((waves + noise).clip(0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def pixels_of(decoded: object) -> npt.NDArray[np.uint8]:
    if isinstance(decoded, torch.Tensor):
        return decoded.permute(1, 2, 0).cpu().numpy()
    assert isinstance(decoded, Image.Image), decoded
    assert decoded.mode == "RGB"
    return np.asarray(decoded)


def check(decoder: Decoder, files: list[bytes]) -> None:
    for data, decoded in zip(files, decoder.decode(files), strict=True):
        assert np.array_equal(pixels_of(decoded), np.asarray(decode_image(data)))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_every_kind_of_jpeg_has_the_pixels_that_pillow_gives(
    decoder: Decoder, mode: str, subsampling: int, progressive: bool
) -> None:
    options = {"subsampling": subsampling, "progressive": progressive}
    check(
        decoder,
        [encode(photo(*size).convert(mode), quality=quality, **options) for size in SIZES for quality in (30, 75, 95)],
    )


@pytest.mark.parametrize("orientation", range(10))
def test_images_come_out_upright(decoder: Decoder, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    check(decoder, [encode(photo(20, 13), exif=exif)])


def test_an_orientation_in_xmp_counts_too(decoder: Decoder) -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    data = encode(photo(20, 13), xmp=xmp)
    assert decode_image(data).size == (13, 20)  # else this test would show nothing
    check(decoder, [data])


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_other_files_than_jpegs_come_out_as_pillow_gives_them(decoder: Decoder, kind: str) -> None:
    check(decoder, [encode(photo(20, 13), kind), encode(photo(9, 30).convert("L"), kind)])


def test_a_jpeg_that_stores_rgb_is_not_taken_for_ycbcr(decoder: Decoder) -> None:
    check(decoder, [encode(photo(20, 13), keep_rgb=True)])


def test_files_of_all_kinds_together_keep_their_order(decoder: Decoder) -> None:
    check(decoder, [encode(photo(20 + n, 13, n), ("JPEG", "PNG", "BMP")[n % 3]) for n in range(12)])


@pytest.mark.parametrize("spoil", ["cut", "cut in the head", "empty", "text", "one pixel high"])
def test_what_cannot_be_read_is_an_error_in_its_place_and_the_others_are_decoded(decoder: Decoder, spoil: str) -> None:
    good = encode(photo(64, 48))
    bad = {
        "cut": good[: len(good) // 2],
        "cut in the head": good[:100],
        "empty": b"",
        "text": b"no image at all",
        "one pixel high": encode(Image.new("RGB", (300, 1))),
    }[spoil]
    first, second, third = decoder.decode([good, bad, good])
    assert isinstance(second, UnreadableItemError)
    with pytest.raises(UnreadableItemError) as caught:
        decode_image(bad)
    assert str(second) == str(caught.value)
    assert np.array_equal(pixels_of(first), pixels_of(third))


def test_a_file_with_something_behind_its_end_is_read_as_pillow_reads_it(decoder: Decoder) -> None:
    check(decoder, [encode(photo(64, 48)) + b"\0" * 100, encode(photo(64, 48)) + b"behind the end"])


def test_a_decoder_serves_many_threads_at_once(decoder: Decoder) -> None:
    files = [encode(photo(64 + number, 48, number)) for number in range(24)]
    with ThreadPoolExecutor(4) as pool:
        decoded = list(pool.map(lambda data: decoder.decode([data])[0], files))
    for data, each in zip(files, decoded, strict=True):
        assert np.array_equal(pixels_of(each), np.asarray(decode_image(data)))


def test_nothing_at_all_decodes_to_nothing(decoder: Decoder) -> None:
    assert list(decoder.decode([])) == []


def test_the_chosen_decoder_is_the_one_that_was_measured_fastest() -> None:
    choice = choose_decoder([encode(photo(200, 150, seed)) for seed in range(4)])
    assert choice.decoder.name in {each.name for each in find_decoders()}
    if choice.files_per_second:
        assert choice.files_per_second[choice.decoder.name] == max(choice.files_per_second.values())
        assert set(choice.files_per_second) == {each.name for each in find_decoders()}


def test_without_files_to_measure_on_pillow_is_chosen() -> None:
    assert choose_decoder([]).decoder.name == "Pillow"


def test_the_probe_tensor_owns_its_bytes() -> None:
    data = encode(photo(8, 8))
    tensor = _as_tensor(data)
    tensor[0] = 0
    assert data == encode(photo(8, 8))
