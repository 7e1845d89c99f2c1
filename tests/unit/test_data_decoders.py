import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from modelhound.data.decode import decoders
from modelhound.data.decode.decoders import find_decoders
from modelhound.data.decode.trusting import find_trusted
from modelhound.data.images import decode_image
from modelhound.data.jpeg_heads import JpegKind, read_head, turn_upright


def encode(size: tuple[int, int] = (40, 30), mode: str = "RGB", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, size, 100).save(file, "JPEG", **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("mode", "options", "kind"),
    [
        ("RGB", {"subsampling": 0}, JpegKind(3, (0x11, 0x11, 0x11), False)),
        ("RGB", {"subsampling": 1}, JpegKind(3, (0x21, 0x11, 0x11), False)),
        ("RGB", {"subsampling": 2, "progressive": True}, JpegKind(3, (0x22, 0x11, 0x11), True)),
        ("L", {}, JpegKind(1, (0x11,), False)),
    ],
)
def test_a_head_tells_kind_and_size(mode: str, options: dict[str, object], kind: JpegKind) -> None:
    head = read_head(encode((40, 30), mode, **options))
    assert head is not None
    assert (head.kind, head.size, head.orientation) == (kind, (40, 30), 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8",
        b"\xff\xd8\xff",
        b"\x89PNG\r\n\x1a\n",
        encode(mode="CMYK"),
        encode()[:150],
        encode((300, 1)),
        b"\xff\xd8" + encode(),
    ],
)
def test_an_unusual_head_is_left_to_pillow(data: bytes) -> None:
    assert read_head(data) is None


def test_two_statements_of_the_orientation_are_left_to_pillow() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(exif=exif)
    start = data.index(b"\xff\xe1")
    segment = data[start : start + 2 + int.from_bytes(data[start + 2 : start + 4])]
    assert read_head(data) is not None
    assert read_head(data[:start] + segment + data[start:]) is None


@pytest.mark.parametrize("order", ["<", ">"])
def test_an_orientation_is_read_in_either_byte_order(order: str) -> None:
    exif = Image.Exif()
    exif.endian = order
    exif[0x010F] = "a maker of cameras"
    exif[0x0112] = 8
    head = read_head(encode(exif=exif))
    assert head is not None
    assert head.orientation == 8


@pytest.mark.parametrize("orientation", range(1, 9))
def test_arrays_and_tensors_are_turned_alike_and_as_pillow_turns_images(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = io.BytesIO()
    stored = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    Image.fromarray(stored).save(file, "PNG", exif=exif)
    upright = np.asarray(decode_image(file.getvalue()))
    assert np.array_equal(turn_upright(stored, orientation, rows=0, columns=1), upright)
    turned = turn_upright(torch.from_numpy(stored).permute(2, 0, 1), orientation, rows=1, columns=2)
    assert np.array_equal(turned.permute(1, 2, 0).numpy(), upright)


def test_pillow_is_always_there_and_first() -> None:
    assert find_decoders()[0].name == find_decoders("cuda:0")[0].name == "Pillow"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_cuda_device_only_the_host_decodes() -> None:
    assert find_decoders("cuda:0") == find_decoders("cpu")


def test_a_package_that_does_not_load_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", None)
    assert decoders._find_simplejpeg.__wrapped__() is None
    assert decoders._load_torchcodec() is None


def test_a_decoder_is_trusted_with_nothing_but_what_it_decodes_as_pillow_does() -> None:
    def grey_is_wrong(files: list[bytes]) -> list[np.ndarray]:
        images = [np.asarray(decode_image(data)) for data in files]
        return [image ^ 1 if (image == image[..., :1]).all() else image for image in images]

    trusted = find_trusted(grey_is_wrong, tolerance=0.0)
    assert len(trusted) == 6  # three subsamplings, baseline and progressive
    assert all(kind.num_components == 3 for kind in trusted)
    assert len(find_trusted(grey_is_wrong, tolerance=1.0)) == 8


def test_a_decoder_that_fails_or_gives_another_shape_is_trusted_with_nothing() -> None:
    def fail(files: list[bytes]) -> list[np.ndarray]:
        raise OSError("no such library")

    assert not find_trusted(fail, tolerance=0.0)
    assert not find_trusted(lambda files: [np.zeros((2, 2, 3), np.uint8) for _ in files], tolerance=255.0)
