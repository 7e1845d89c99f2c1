"""How long it takes to feed networks: an item is read and decoded once, then brought into each form that is wanted.

In:  a data set, the forms that networks want, a device
Out: FeedTimes, measured in a moment on some of the items, or estimated from how large a few of them are
Nothing here knows networks or plans. Texts are not decoded: each tokenizer reads them for itself. Forms that end in the same
pixels, and differ in how these are normalised, are one.
"""

import contextlib
import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from modelhound.data import Dataset, InputForm, Preprocessing, Tokenising
from modelhound.data.decode import decode
from modelhound.data.images import image_size
from modelhound.data.preprocessing import Variant
from modelhound.data.source import UnreadableItemError
from modelhound.data.sources.prepared import PreparedReader
from modelhound.data.tokens import tokenise_once
from modelhound.features.calibrating import shortest_seconds
from modelhound.features.supply import input_key
from modelhound.meter import count_cores

__all__ = ["FeedTimes", "estimate_feed", "time_feed", "usual_size"]

_SAMPLE_ITEMS = 64
_LOOKED_AT = 5  # items whose size is asked for
_PIXELS, _CHARACTERS = 200_000, 200  # of an item, where nobody can look at one

# Of one core, about; see benchmarks/results: prepared_epyc2_202611 (photographs), engine_log_202611 (an H200, which resizes by
# matrix products; that it may decode as well is not counted on). Of tokenizers and disks nobody has measured it.
_READ_SECONDS = 1e-4
_DECODE_SECONDS_PER_PIXEL = 1e-8
_COPY_SECONDS_PER_PIXEL = 2e-10
_RESIZE_SECONDS_PER_PIXEL = {"cpu": (8e-9, 2e-8), "cuda": (7e-11, 7e-11)}  # of what it is made from; of what is made
_TOKENISE_SECONDS_PER_CHARACTER = 5e-7

# next to no work beside decoding
_SPECK = Preprocessing(
    input_size=(1, 1),
    interpolation="nearest",
    crop_fraction=1.0,
    crop_mode="squash",
    mean=(0.0, 0.0, 0.0),
    std=(1.0, 1.0, 1.0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedTimes:
    """Seconds for one item."""

    decode_seconds: float
    """To read and decode it, whatever is made of it."""
    form_seconds: Mapping[Hashable, float]
    """By what is made of it: to resize it, or to tokenise it."""

    def of(self, forms: Mapping[str, InputForm]) -> dict[str, float]:
        """By the keys of the forms; what several have in common is counted with the first of them."""
        made: set[Hashable] = set()
        seconds = {}
        for key, form in forms.items():
            product = _product(form)
            seconds[key] = 0.0 if product in made else self.form_seconds[product]
            made.add(product)
        return seconds


def estimate_feed(dataset: Dataset, forms: Sequence[InputForm], *, size: float, device: str) -> FeedTimes:
    """From how large items are (see `usual_size`) and what is made of them; none is looked at."""
    cores = count_cores()
    from_pixel, to_pixel = _RESIZE_SECONDS_PER_PIXEL[device.partition(":")[0]]

    def seconds(form: InputForm) -> float:
        if isinstance(form, Tokenising):
            return size * _TOKENISE_SECONDS_PER_CHARACTER / cores
        made = form.input_size[0] * form.input_size[1]
        if _is_ready(dataset, form):
            return made * _COPY_SECONDS_PER_PIXEL / cores
        return (size * from_pixel + made * to_pixel) / (cores if device == "cpu" else 1)

    is_prepared = isinstance(dataset.reader, PreparedReader)
    from_file = _READ_SECONDS + size * (_COPY_SECONDS_PER_PIXEL if is_prepared else _DECODE_SECONDS_PER_PIXEL)
    is_decoded = any(not isinstance(form, Tokenising) and not _is_ready(dataset, form) for form in forms)
    return FeedTimes(
        decode_seconds=from_file / cores if is_decoded else 0.0,
        form_seconds={_product(form): seconds(form) for form in forms},
    )


def usual_size(dataset: Dataset) -> float:
    """Pixels of an image, or characters of a text: the median of a few, spread over all of them. Files are not decoded."""
    step = max(1, len(dataset) // _LOOKED_AT)
    sizes = []
    for position in range(0, len(dataset), step)[:_LOOKED_AT]:
        with contextlib.suppress(UnreadableItemError):  # it is named when its turn comes
            sizes.append(_size_of(dataset, position))
    return float(np.median(sizes)) if sizes else float(_PIXELS if dataset.modality == "image" else _CHARACTERS)


def time_feed(
    dataset: Dataset,
    forms: Sequence[InputForm],
    *,
    device: str,
    threads: int | None,
) -> FeedTimes:
    """By feeding some items. To decode alone is to make a single pixel of each; what a form takes comes on top of that."""
    step = max(1, len(dataset) // _SAMPLE_ITEMS)
    positions = list(range(0, len(dataset), step))[:_SAMPLE_ITEMS]
    distinct = {_product(form): form for form in reversed(forms)}

    if dataset.modality == "text":
        chosen = dataset.select(positions)

        def tokenise(form: InputForm) -> object:
            return tokenise_once(chosen, [form] if isinstance(form, Tokenising) else [])

        return FeedTimes(
            decode_seconds=0.0,
            form_seconds={
                product: shortest_seconds(functools.partial(tokenise, form), device) / len(positions)
                for product, form in distinct.items()
            },
        )
    # once for all items
    choice = decode(dataset, positions[:1], list(distinct.values()), device=device, threads=threads).choice

    def take(form: InputForm) -> float:
        def work() -> object:
            return decode(dataset, positions, [form], device=device, threads=threads, choice=choice)

        return shortest_seconds(work, device) / len(positions)

    is_ready = {product: _is_ready(dataset, form) for product, form in distinct.items()}
    decode_seconds = 0.0 if all(is_ready.values()) else take(_SPECK)
    return FeedTimes(
        decode_seconds=decode_seconds,
        form_seconds={
            product: take(form) if is_ready[product] else max(0.0, take(form) - decode_seconds)
            for product, form in distinct.items()
        },
    )


def _product(form: InputForm) -> Hashable:
    """The same for forms of which one is made when the other is."""
    return Variant.of(form) if isinstance(form, Preprocessing) else input_key(form)


def _is_ready(dataset: Dataset, form: InputForm) -> bool:
    """Whether the pixels lie there as they are wanted."""
    reader = dataset.reader
    return isinstance(form, Preprocessing) and isinstance(reader, PreparedReader) and reader.holds(form)


def _size_of(dataset: Dataset, position: int) -> int:
    read_bytes = getattr(dataset.reader, "read_bytes", None)
    if read_bytes is not None:
        width, height = image_size(read_bytes(position))
        return width * height
    item = dataset.reader.read(position)
    return item.width * item.height if isinstance(item, Image.Image) else sum(map(len, item))
