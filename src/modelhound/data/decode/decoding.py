"""The work behind `decoded`: read items, decode them and cut out the pixels that models want.

In:  a Dataset and some of its positions, the Variants wanted, a decoder
Out: uint8 pixels [items, height, width, 3] for each Variant
Nothing here decides what is kept where or for how long. Threads suffice: reading, decoding and resizing let go of Python's lock
while they work, and unlike processes they need not copy their results (benchmarks/decoding.py compares the two).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from modelhound.compat import threads_kept
from modelhound.data.dataset import Dataset
from modelhound.data.decode.decoders import Decoder
from modelhound.data.in_order import work_in_order
from modelhound.data.preprocessing import OwnTransform, Preprocessing, Variant, make_cut
from modelhound.data.source import UnreadableItemError
from modelhound.data.sources.prepared import PreparedReader
from modelhound.errors import DataError, ModelError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["decode_on_device", "decode_on_host"]

_NUM_CHANNELS = 3
_HOST_BLOCK = 16  # items per task: enough that handing tasks out costs nothing, few enough to answer Ctrl-C
_DEVICE_BLOCK = 256  # files per call of nvJPEG
_MAX_BLOCK_BYTES = 1 << 30  # of files decoded at once, at a guess of 16 bytes for each encoded one
_DECODED_PER_ENCODED = 16
_BLOCKS_AHEAD = 2  # for each thread


def decode_on_host(
    dataset: Dataset,
    positions: Sequence[int],
    variants: Mapping[Variant, Preprocessing],
    transforms: Sequence[OwnTransform],
    decoder: Decoder | None,
    threads: int,
    tell: Callable[[int], None],
    *,
    pin: bool,
) -> "tuple[dict[Variant, Tensor], dict[OwnTransform, Tensor], dict[OwnTransform, str]]":
    """Pixels by Pillow, as timm's transforms cut them, what users' own transforms make of whole images, and why some of these
    make nothing of one: then they are not asked again."""
    import torch

    num_items = len(positions)
    pixels = {
        each: torch.empty((num_items, *each.input_size, 3), dtype=torch.uint8, pin_memory=pin) for each in variants
    }
    own = {
        each: torch.empty((num_items, _NUM_CHANNELS, *each.input_size), dtype=torch.float32, pin_memory=pin)
        for each in transforms
    }
    failed: dict[OwnTransform, str] = {}
    ready = {variant for variant, form in variants.items() if _is_ready(dataset, form)}
    cuts = {variant: make_cut(variant) for variant in variants if variant not in ready}
    views = {variant: each.numpy() for variant, each in pixels.items()}

    def work(rows: range) -> int:
        for variant in ready:
            views[variant][rows.start : rows.stop] = _read_ready(
                dataset, [positions[row] for row in rows], variants[variant]
            )
        if cuts or own:
            for row in rows:
                image = _read_image(dataset, positions[row], decoder)
                with _explained(dataset, positions[row]):
                    for variant, cut in cuts.items():
                        views[variant][row] = np.asarray(cut(image))
                for form, kept in own.items():
                    if form not in failed:
                        try:
                            _make_own(form, image, dataset.item_names[positions[row]], kept[row])
                        except ModelError as error:
                            failed[form] = str(error)
        return len(rows)

    with threads_kept():
        done = 0
        for count in work_in_order(
            work,
            _blocks(num_items, _HOST_BLOCK),
            threads=threads,
            ahead=threads * _BLOCKS_AHEAD,
            name="decode",
            begin=_calm_torch if own else None,
        ):
            done += count
            tell(done)
    return pixels, own, failed


def decode_on_device(
    dataset: Dataset,
    positions: Sequence[int],
    variants: Sequence[Variant],
    decoder: Decoder,
    device: str,
    threads: int,
    tell: Callable[[int], None],
    *,
    keep_on_host: bool,
) -> "dict[Variant, Tensor]":
    """Pixels resized and cropped on the device, and decoded there too where the decoder can."""
    import torch

    place: dict[str, Any] = {"pin_memory": True} if keep_on_host else {"device": device}
    shape = (len(positions),)
    pixels = {each: torch.empty((*shape, *each.input_size, 3), dtype=torch.uint8, **place) for each in variants}
    done = 0
    for rows, images in _images_on_device(dataset, positions, decoder, device, threads):
        _cut_groups(images, rows, variants, pixels)
        done += len(rows)
        tell(done)
    if keep_on_host:
        torch.cuda.current_stream(device).synchronize()
    return pixels


def _images_on_device(
    dataset: Dataset, positions: Sequence[int], decoder: Decoder, device: str, threads: int
) -> "Iterator[tuple[range, list[Tensor]]]":
    """Whole images, uint8 [3, height, width] on the device, some at a time."""
    on_host = decoder.device == "cpu"

    def work(rows: range) -> "list[bytes] | list[Tensor]":
        some = [positions[row] for row in rows]
        if on_host:
            return [_as_tensor(_read_image(dataset, position, decoder)) for position in some]
        return [_read_file(dataset, position) for position in some]

    block: list[Any] = []
    first = block_bytes = 0
    # Files are read ahead for a whole call of nvJPEG; images, which are larger, just to keep the threads busy.
    ahead = threads * _BLOCKS_AHEAD if on_host else _DEVICE_BLOCK // _HOST_BLOCK
    blocks = _blocks(len(positions), _HOST_BLOCK)
    for made in work_in_order(work, blocks, threads=threads, ahead=ahead, name="decode"):
        block += made
        block_bytes += sum(each.nbytes if on_host else len(each) * _DECODED_PER_ENCODED for each in block[-len(made) :])
        last = first + len(block)
        if len(block) >= _DEVICE_BLOCK or block_bytes >= _MAX_BLOCK_BYTES or last == len(positions):
            yield range(first, last), _to_device(dataset, positions[first:last], block, decoder, device)
            block, block_bytes, first = [], 0, last


def _to_device(
    dataset: Dataset, positions: Sequence[int], block: list[Any], decoder: Decoder, device: str
) -> "list[Tensor]":
    if decoder.device == "cpu":
        return [each.to(device, non_blocking=True).permute(2, 0, 1) for each in block]
    images: list[Tensor] = []
    for position, made in zip(positions, decoder.decode(block), strict=True):
        if isinstance(made, UnreadableItemError | Image.Image):
            # read again, the plain way: that error has the item's name
            images.append(_as_tensor(_read_plainly(dataset, position)).to(device).permute(2, 0, 1))
        else:
            images.append(made)
    return images


def _cut_groups(
    images: "list[Tensor]", rows: range, variants: Sequence[Variant], pixels: "dict[Variant, Tensor]"
) -> None:
    """Images of one size share two matrix products per variant."""
    import torch

    from modelhound.data.decode.resizing import resize_and_crop

    groups: dict[tuple[int, ...], list[int]] = {}
    for place, image in enumerate(images):
        groups.setdefault(tuple(image.shape), []).append(place)
    where: Tensor | None = None  # on the device, the row of every image, group after group: brought there at once
    if len(groups) > 1 and all(kept.is_cuda for kept in pixels.values()):
        listed = torch.tensor([rows.start + place for places in groups.values() for place in places])
        where = listed.pin_memory().to(images[0].device, non_blocking=True)
    begin = 0
    for places in groups.values():
        group = torch.stack([images[place] for place in places])
        for variant in variants:
            made = resize_and_crop(group, variant)
            kept = pixels[variant]
            if len(places) == len(rows):
                kept[rows.start : rows.stop].copy_(made, non_blocking=True)
            elif where is not None:
                kept.index_copy_(0, where[begin : begin + len(places)], made)
            else:
                for place, one in zip(places, made, strict=True):
                    kept[rows.start + place].copy_(one, non_blocking=True)
        begin += len(places)


def _make_own(form: OwnTransform, image: Image.Image, name: str, kept: "Tensor") -> None:
    import torch

    made = form.make(image, name)
    try:
        kept.copy_(made)
    except (RuntimeError, TypeError) as error:
        found = tuple(made.shape) if isinstance(made, torch.Tensor) else type(made).__name__
        raise ModelError(
            f"cannot prepare {name!r}: expected {tuple(kept.shape)} of its own transform, as of other images, but it made "
            f"{found}; let it crop or stretch all images to one size"
        ) from error


def _is_ready(dataset: Dataset, form: Preprocessing) -> bool:
    return isinstance(dataset.reader, PreparedReader) and dataset.reader.holds(form)


def _read_ready(dataset: Dataset, positions: Sequence[int], form: Preprocessing) -> npt.NDArray[np.uint8]:
    assert isinstance(dataset.reader, PreparedReader)  # see _is_ready
    try:
        return dataset.reader.read_pixels(positions, form)
    except UnreadableItemError as error:
        raise DataError(f"cannot load {dataset.name!r}: expected whole prepared items, but {error}") from error


def _read_image(dataset: Dataset, position: int, decoder: Decoder | None) -> Image.Image:
    read_bytes = getattr(dataset.reader, "read_bytes", None)
    if decoder is not None and read_bytes is not None:
        try:
            (image,) = decoder.decode([read_bytes(position)])
        except UnreadableItemError:
            return _read_plainly(dataset, position)
        if isinstance(image, Image.Image):
            return image
    return _read_plainly(dataset, position)


def _read_plainly(dataset: Dataset, position: int) -> Image.Image:
    image = dataset.read(position)  # an item that cannot be read is named here
    assert isinstance(image, Image.Image)  # texts were refused before
    return image


def _read_file(dataset: Dataset, position: int) -> bytes:
    try:
        data: bytes = dataset.reader.read_bytes(position)  # type: ignore[attr-defined]  # else no decoder was chosen
    except UnreadableItemError:
        return b""  # no decoder takes this, so that it is read again the plain way
    return data


def _as_tensor(image: Image.Image) -> "Tensor":
    import torch

    return torch.from_numpy(np.array(image))


@contextmanager
def _explained(dataset: Dataset, position: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        name = dataset.item_names[position]
        raise DataError(f"cannot prepare {name!r}: expected an image, but {type(error).__name__}: {error}") from error


def _blocks(num_items: int, size: int) -> list[range]:
    return [range(start, min(start + size, num_items)) for start in range(0, num_items, size)]


def _calm_torch() -> None:
    """An image is too little work for torch's own threads beside ours; see `loading`."""
    import torch

    torch.set_num_threads(1)
