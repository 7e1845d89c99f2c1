import io
import zlib
from concurrent.futures import ThreadPoolExecutor
from struct import pack

import numpy as np
import pytest
from PIL import Image, ImageDraw

from modelhound.data.images import _to_rgb, decode_image
from modelhound.data.source import UnreadableItemError

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def encode(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def photo(size: tuple[int, int] = (64, 48)) -> Image.Image:
    """Noise, so that a cut-off file misses pixels and does not just lack an end mark."""
    generator = np.random.default_rng(0)
    return Image.fromarray(generator.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def red_corner(size: tuple[int, int] = (48, 32)) -> Image.Image:
    """Blue, with a red rectangle at the top left."""
    image = Image.new("RGB", size, BLUE)
    ImageDraw.Draw(image).rectangle((0, 0, 15, 15), fill=RED)
    return image


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def near(pixel: object, colour: tuple[int, int, int], tolerance: int = 6) -> bool:
    return isinstance(pixel, tuple) and all(abs(a - b) <= tolerance for a, b in zip(pixel, colour, strict=True))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {"quality": 95, "subsampling": 0}),
        ("JPEG", {"quality": 95, "subsampling": 0, "progressive": True}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("WEBP", {"quality": 100}),
        ("BMP", {}),
        ("GIF", {}),
        ("TIFF", {}),
    ],
)
def test_each_file_format_gives_its_colours_back(kind: str, options: dict[str, object]) -> None:
    image = decode_image(encode(red_corner(), kind, **options))
    assert (image.mode, image.size) == ("RGB", (48, 32))
    assert near(image.getpixel((4, 4)), RED)
    assert near(image.getpixel((40, 28)), BLUE)


@pytest.mark.parametrize("preview", [False, True])
@pytest.mark.parametrize(
    ("orientation", "corner"),
    [
        (1, (0, 0)),
        (2, (1, 0)),
        (3, (1, 1)),
        (4, (0, 1)),
        (5, (0, 0)),
        (6, (1, 0)),
        (7, (1, 1)),
        (8, (0, 1)),
    ],
)
def test_an_exif_rotated_photo_stands_upright(orientation: int, corner: tuple[int, int], preview: bool) -> None:
    data = encode(red_corner((96, 64)), "JPEG", quality=95, subsampling=0, exif=exif(orientation))
    image = decode_image(data, preview=preview)
    assert (image.width > image.height) == (orientation < 5)
    last = (image.width - 1, image.height - 1)
    assert near(image.getpixel((corner[0] * last[0], corner[1] * last[1])), RED, 40)
    assert near(image.getpixel(((1 - corner[0]) * last[0], (1 - corner[1]) * last[1])), BLUE, 40)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
def test_orientation_counts_in_other_formats_too(kind: str) -> None:
    image = decode_image(encode(red_corner(), kind, exif=exif(3)))
    assert near(image.getpixel((47, 31)), RED)


def test_orientation_is_applied_once_and_then_forgotten() -> None:
    image = decode_image(encode(red_corner(), "JPEG", exif=exif(6)))
    assert image.getexif().get(0x0112) is None
    assert image.info == {}


def test_broken_exif_does_not_make_a_photo_unreadable() -> None:
    image = decode_image(encode(red_corner(), "JPEG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff garbage"))
    assert near(image.getpixel((4, 4)), RED, 40)


def test_greyscale_and_one_bit_become_equal_channels() -> None:
    assert decode_image(encode(Image.new("L", (4, 4), 77))).getpixel((1, 1)) == (77, 77, 77)
    assert decode_image(encode(Image.new("1", (4, 4), 1))).getpixel((1, 1)) == WHITE
    assert decode_image(encode(Image.new("1", (4, 4), 0))).getpixel((1, 1)) == BLACK


def test_a_palette_is_looked_up() -> None:
    image = decode_image(encode(red_corner().quantize(4)))
    assert near(image.getpixel((4, 4)), RED)
    assert near(image.getpixel((40, 28)), BLUE)


@pytest.mark.parametrize("transparency", [0, b"\x00\xff"])
def test_transparent_palette_entries_become_white(transparency: int | bytes) -> None:
    image = Image.new("P", (4, 2), 0)
    image.putpalette([*GREEN, *BLUE])
    image.putpixel((3, 1), 1)
    decoded = decode_image(encode(image, transparency=transparency))
    assert decoded.getpixel((0, 0)) == WHITE
    assert decoded.getpixel((3, 1)) == BLUE


def test_half_transparent_palette_entries_are_mixed_with_white() -> None:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([*GREEN, *BLUE])
    assert near(decode_image(encode(image, transparency=b"\xff\x80")).getpixel((0, 0)), (127, 127, 255), 1)


def test_alpha_is_mixed_with_white_whatever_colour_it_hides() -> None:
    assert decode_image(encode(Image.new("RGBA", (4, 4), (9, 9, 9, 0)))).getpixel((0, 0)) == WHITE
    assert decode_image(encode(Image.new("RGBA", (4, 4), (9, 8, 7, 255)))).getpixel((0, 0)) == (9, 8, 7)
    assert near(decode_image(encode(Image.new("RGBA", (4, 4), (0, 0, 0, 128)))).getpixel((0, 0)), (127, 127, 127), 1)
    webp = encode(Image.new("RGBA", (4, 4), (0, 0, 0, 128)), "WEBP", lossless=True)
    assert near(decode_image(webp).getpixel((0, 0)), (127, 127, 127), 1)


def test_grey_with_alpha_is_mixed_with_white() -> None:
    assert decode_image(encode(Image.new("LA", (4, 4), (0, 0)))).getpixel((0, 0)) == WHITE
    assert decode_image(encode(Image.new("LA", (4, 4), (60, 255)))).getpixel((0, 0)) == (60, 60, 60)


@pytest.mark.parametrize(("mode", "colour"), [("L", 10), ("RGB", (10, 20, 30))])
def test_a_colour_marked_as_transparent_becomes_white(mode: str, colour: object) -> None:
    image = Image.new(mode, (4, 4), colour)
    assert decode_image(encode(image, transparency=colour)).getpixel((0, 0)) == WHITE


def test_a_cmyk_jpeg_is_not_inverted() -> None:
    data = encode(red_corner().convert("CMYK"), "JPEG", quality=95)
    assert b"Adobe" in data
    with Image.open(io.BytesIO(data)) as stored:
        assert stored.mode == "CMYK"
    image = decode_image(data)
    assert near(image.getpixel((4, 4)), RED, 40)
    assert near(image.getpixel((40, 28)), BLUE, 40)
    assert decode_image(data, preview=True).mode == "RGB"


def test_a_ycbcr_tiff_becomes_rgb() -> None:
    image = decode_image(encode(red_corner().convert("YCbCr"), "TIFF", compression="tiff_lzw"))
    assert near(image.getpixel((4, 4)), RED)


@pytest.mark.parametrize("mode", ["YCbCr", "HSV", "CMYK", "RGBX", "RGBA", "RGBa"])
def test_every_colour_mode_keeps_its_colours(mode: str) -> None:
    """Which of these a file gives differs between versions of Pillow."""
    image = red_corner().convert("RGBA" if mode == "RGBa" else "RGB").convert(mode)
    assert near(_to_rgb(image).getpixel((4, 4)), RED)
    assert near(_to_rgb(image).getpixel((40, 28)), BLUE)


@pytest.mark.parametrize(("value", "expected"), [(0, 0), (257, 1), (300, 1), (32896, 128), (65535, 255)])
def test_16_bit_grey_is_scaled_and_not_clipped(value: int, expected: int) -> None:
    array = np.full((4, 4), value, dtype=np.uint16)
    for kind in ("PNG", "TIFF"):
        assert decode_image(encode(Image.fromarray(array), kind)).getpixel((0, 0)) == (expected,) * 3
    big_endian = Image.frombytes("I;16B", (4, 4), array.astype(">u2").tobytes())
    assert decode_image(encode(big_endian, "TIFF")).getpixel((0, 0)) == (expected,) * 3
    assert decode_image(encode(Image.fromarray(array.astype(np.int32)), "TIFF")).getpixel((0, 0)) == (expected,) * 3


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0.0, 0.5, 1.0], [0, 128, 255]), ([0.0, 100.0, 255.0], [0, 100, 255]), ([-1.0, 0.0, 1.0], [0, 128, 255])],
)
def test_float_images_are_brought_into_range(values: list[float], expected: list[int]) -> None:
    image = decode_image(encode(Image.fromarray(np.array([values], dtype=np.float32)), "TIFF"))
    assert np.asarray(image)[0, :, 0].tolist() == expected


def test_not_a_number_and_constant_floats_do_no_harm() -> None:
    for value in (np.nan, np.inf, 7000.0):
        decoded = decode_image(encode(Image.fromarray(np.full((2, 2), value, dtype=np.float32)), "TIFF"))
        assert decoded.getpixel((0, 0)) == BLACK


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_counts(kind: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, GREEN)]
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
    assert near(decode_image(data).getpixel((8, 8)), RED)


@pytest.mark.parametrize("preview", [False, True])
@pytest.mark.parametrize("keep", [0.9, 0.5, 0.1])
@pytest.mark.parametrize(
    ("kind", "options"),
    [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("BMP", {})],
)
def test_a_truncated_file_is_noticed(kind: str, options: dict[str, object], keep: float, preview: bool) -> None:
    data = encode(photo(), kind, **options)
    decode_image(data, preview=preview)
    with pytest.raises(UnreadableItemError) as caught:
        decode_image(data[: int(len(data) * keep)], preview=preview)
    assert "BytesIO" not in str(caught.value)


def test_a_jpeg_preview_is_smaller() -> None:
    assert decode_image(encode(photo((640, 480)), "JPEG"), preview=True).size == (80, 60)


def test_empty_and_foreign_files_are_told_apart() -> None:
    with pytest.raises(UnreadableItemError, match="empty"):
        decode_image(b"")
    with pytest.raises(UnreadableItemError, match="not an image"):
        decode_image(b"<html>404 not found</html>")


def test_postscript_is_refused_whatever_its_name() -> None:
    with pytest.raises(UnreadableItemError, match="not an image"):
        decode_image(encode(red_corner(), "EPS"))


def png_head(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return pack(">I", len(data)) + name + data + pack(">I", zlib.crc32(name + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(bytes(100)))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [10_000, 30_000])
def test_a_decompression_bomb_is_an_unreadable_image_and_no_warning(side: int) -> None:
    with pytest.raises(UnreadableItemError, match="bomb"):
        decode_image(png_head(side, side))


def test_a_picture_that_would_grow_without_bounds_is_refused() -> None:
    with pytest.raises(UnreadableItemError, match="5000 x 1"):
        decode_image(encode(Image.new("RGB", (5000, 1))))


def test_threads_leave_the_warning_filters_as_they_were() -> None:
    import warnings

    before = list(warnings.filters)
    images = [encode(photo((16, 16)), "JPEG") for _ in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode_image, images))
    assert warnings.filters == before
