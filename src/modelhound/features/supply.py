"""What networks are fed with: each item read and decoded once, ahead of use where a device does the work.

In:  a data set, the order in which items are taken, the forms that networks want
Out: for a range of items one Feed per form, which gives batches
Nothing here knows a network. On a CPU the cores that would decode ahead are busy, so items are decoded when they are asked for.
On a CUDA device a thread decodes block after block into memory of the device, and a batch waits only for its own items.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor

from modelhound.data import Dataset, InputForm, OwnTransform, Tokenising
from modelhound.data.decode import DecodedChunk, decode
from modelhound.data.decode.decoders import Choice
from modelhound.data.tokens import TokenisedTexts, tokenise_once
from modelhound.meter import Lanes
from modelhound.models.parts import Inputs
from modelhound.records import Watch, silent

__all__ = ["Feed", "Supply", "input_bytes", "input_key"]

_BLOCK = 1024  # items decoded at a time ahead of use
_CPU_BATCH_TOKENS = 2048  # fewer texts at a time where they are long: less padding, and values stay in the cache


class Feed(Protocol):
    """A range of items in one form, cut into batches."""

    num_batches: int
    num_truncated: int

    def items(self) -> Iterator[Tensor]:
        """The item numbers of each batch."""

    def wait(self, number: int) -> None:
        """Until the items of this batch are there."""

    def inputs(self, number: int, layout: torch.memory_format) -> Inputs:
        """One batch, on the device. On CUDA the last batch of images is filled up, so that all have one shape."""

    def stand_in(self, number: int) -> Inputs:
        """Something of its shape, for parts that do not look at it."""


class Supply:
    """Gives Feeds. Close it, so that its threads end."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        device: str,
        dtype: torch.dtype,
        threads: int | None = None,
        lanes: Lanes | None = None,
        watch: Watch = silent,
    ) -> None:
        self._dataset, self._device, self._dtype, self._threads = dataset, device, dtype, threads
        self._lanes, self._watch = lanes or Lanes(), watch
        self._ahead = ThreadPoolExecutor(1, thread_name_prefix="decode ahead") if device != "cpu" else None
        self._expected: dict[
            tuple[tuple[int, ...], frozenset[str]], _Growing
        ] = {}  # by the items and the forms they are wanted in
        self._all: _Growing | None = None
        self._all_order: Sequence[int] = ()
        self._all_forms: frozenset[str] = frozenset()
        self._choice: Choice | None = None
        self._stopped = threading.Event()

    def expect(self, items: range, order: Sequence[int], forms: Mapping[str, InputForm]) -> None:
        """Begin to decode these items; `open` will take them over. Does nothing where nothing can be done ahead."""
        images = {key: form for key, form in forms.items() if not isinstance(form, Tokenising)}
        if self._ahead is None or not images:
            return
        positions = tuple(order[item] for item in items)
        key = (positions, frozenset(images))
        if key not in self._expected:
            growing = _Growing(len(items), self._device)
            self._expected[key] = growing
            self._ahead.submit(self._decode_blocks, growing, positions, list(images.values()))

    def expect_all(self, order: Sequence[int], forms: Mapping[str, InputForm]) -> None:
        """Begin to decode all items, to be kept until the end."""
        images = {key: form for key, form in forms.items() if not isinstance(form, Tokenising)}
        if self._ahead is not None and images and self._all is None:
            self._all = _Growing(len(order), self._device)
            self._all_order, self._all_forms = order, frozenset(images)
            self._ahead.submit(self._decode_blocks, self._all, list(order), list(images.values()))

    def open(
        self, items: range, order: Sequence[int], forms: Mapping[str, InputForm], batches: Mapping[str, int]
    ) -> dict[str, Feed]:
        """A Feed for each form by its key; `batches` says how many items at a time."""
        feeds: dict[str, Feed] = {}
        images = {key: form for key, form in forms.items() if not isinstance(form, Tokenising)}
        texts = {key: form for key, form in forms.items() if isinstance(form, Tokenising)}
        positions = [order[item] for item in items]
        if images:
            growing, begin = self._find(items, order, images)
            for key, form in images.items():
                feeds[key] = _ImageFeed(growing, begin, items, form, batches[key], self._dtype, self._device)
        if texts:
            with self._lanes.span("decoding", "tokenise"):
                tokenised = tokenise_once(self._dataset.select(positions), list(texts.values()), watch=self._watch)
            for key, tokenising in texts.items():
                feeds[key] = _TextFeed(tokenised[tokenising], items.start, batches[key], self._device)
        return feeds

    def _find(self, items: range, order: Sequence[int], images: Mapping[str, InputForm]) -> "tuple[_Growing, int]":
        """Where these items are or will be, and how many others come before them there."""
        if self._all is not None and self._all_order is order and self._all_forms.issuperset(images):
            return self._all, items.start
        self.expect(items, order, images)
        positions = tuple(order[item] for item in items)
        growing = self._expected.pop((positions, frozenset(images)), None)
        if growing is None:
            growing = _Growing(len(items), self._device)
            self._decode_block(growing, positions, list(images.values()), 0)
        return growing, 0

    def close(self) -> None:
        self._stopped.set()
        if self._ahead is not None:
            self._ahead.shutdown(wait=True, cancel_futures=True)

    def _decode_blocks(self, growing: "_Growing", positions: Sequence[int], forms: list[InputForm]) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream(self._device)):  # type: ignore[no-untyped-call]
                for start in range(0, len(positions), _BLOCK):
                    if self._stopped.is_set():
                        return
                    self._decode_block(growing, positions[start : start + _BLOCK], forms, start)
        except BaseException as error:
            growing.fail(error)  # whatever it was: whoever waits for these items would wait for ever
            raise

    def _decode_block(self, growing: "_Growing", positions: Sequence[int], forms: list[InputForm], start: int) -> None:
        with self._lanes.span("decoding", "decode"):
            made = decode(
                self._dataset,
                positions,
                forms,
                device=self._device,
                threads=self._threads,
                choice=self._choice,
                watch=self._watch,
            )
            if self._device != "cpu":
                torch.cuda.current_stream(self._device).synchronize()
        self._choice = made.choice or self._choice
        growing.add(made, start)


class _Growing:
    """A chunk of items that becomes longer while it is used."""

    def __init__(self, num_items: int, device: str) -> None:
        self._num_items, self._device = num_items, device
        self._whole: DecodedChunk | None = None
        self._num_there = 0
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return self._num_items

    def add(self, made: DecodedChunk, start: int) -> None:
        if len(made) == self._num_items:
            self._whole = made
        else:
            if self._whole is None:
                self._whole = self._make_room_like(made)
            stop = start + len(made)
            for variant, pixels in made.pixels.items():
                self._whole.pixels[variant][start:stop].copy_(pixels)
            for form, own in made.own.items():
                self._whole.own[form][start:stop].copy_(own)
            self._whole.failed.update(made.failed)
            if self._device != "cpu":
                torch.cuda.current_stream(self._device).synchronize()
        with self._changed:
            self._num_there = start + len(made)
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def wait(self, stop: int) -> DecodedChunk:
        """Until the first `stop` items are there."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_there >= stop or self._error is not None)
            if self._num_there < stop and self._error is not None:
                raise self._error
        assert self._whole is not None
        return self._whole

    def _make_room_like(self, made: DecodedChunk) -> DecodedChunk:
        def room(tensor: Tensor) -> Tensor:
            return tensor.new_empty((self._num_items, *tensor.shape[1:]))

        return DecodedChunk(
            positions=range(self._num_items),
            device=self._device,
            choice=made.choice,
            pixels={variant: room(pixels) for variant, pixels in made.pixels.items()},
            own={form: room(own) for form, own in made.own.items()},
        )


class _ImageFeed:
    num_truncated = 0

    def __init__(
        self,
        growing: "_Growing",
        begin: int,
        items: range,
        form: InputForm,
        batch: int,
        dtype: torch.dtype,
        device: str,
    ) -> None:
        """The items are those of `growing` from `begin` on."""
        self._growing, self._begin, self._form, self._batch = growing, begin, form, batch
        self._dtype, self._device = dtype, device
        self._first, self._num_items = items.start, len(items)
        self.num_batches = -(-len(items) // batch)

    def items(self) -> Iterator[Tensor]:
        for number in range(self.num_batches):
            start, stop = self._ends(number)
            yield torch.arange(self._first + start, self._first + stop)

    def wait(self, number: int) -> None:
        self._growing.wait(self._begin + self._ends(number)[1])

    def inputs(self, number: int, layout: torch.memory_format) -> Tensor:
        start, stop = self._ends(number)
        decoded = self._growing.wait(self._begin + stop)
        images = decoded.inputs(
            self._form,
            self._begin + start,
            self._begin + stop,
            dtype=self._dtype,
            channels_last=layout == torch.channels_last,
        )
        missing = self._num_rows(number) - len(images)
        if not missing:
            return images
        return torch.cat([images, images[-1:].expand(missing, -1, -1, -1)]).contiguous(memory_format=layout)

    def stand_in(self, number: int) -> Tensor:
        height, width = self._form.input_size  # type: ignore[union-attr]
        blank = torch.zeros(1, device=self._device, dtype=self._dtype)
        return blank.expand(self._num_rows(number), 3, height, width)

    def _num_rows(self, number: int) -> int:
        start, stop = self._ends(number)
        return stop - start if self._device == "cpu" else self._batch

    def _ends(self, number: int) -> tuple[int, int]:
        return number * self._batch, min((number + 1) * self._batch, self._num_items)


class _TextFeed:
    def __init__(self, texts: TokenisedTexts, first: int, batch: int, device: str) -> None:
        self._first, self._device = first, device
        most_tokens = _CPU_BATCH_TOKENS if device == "cpu" else None
        self._batches = list(texts.batches(batch, max_batch_tokens=most_tokens))
        # all at once: tokens are small, and to bring them over for every step would be to wait for the device every time
        self._inputs = [_bring(batch.inputs, device) for batch in self._batches]
        self.num_batches, self.num_truncated = len(self._batches), texts.num_truncated

    def items(self) -> Iterator[Tensor]:
        for batch in self._batches:
            yield batch.positions + self._first

    def wait(self, number: int) -> None:
        """They are here already."""

    def inputs(self, number: int, layout: torch.memory_format) -> dict[str, Tensor]:
        return dict(self._inputs[number])

    def stand_in(self, number: int) -> dict[str, Tensor]:
        return self.inputs(number, torch.contiguous_format)  # tokens are small, and masks are made from them


def _bring(inputs: Mapping[str, Tensor], device: str) -> dict[str, Tensor]:
    if device == "cpu":
        return dict(inputs)
    return {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in inputs.items()}


def input_key(form: InputForm) -> str:
    """The same for forms that give the same inputs."""
    if isinstance(form, Tokenising):
        return f"{form.fingerprint} {form.max_tokens}"
    # functions that do different things may look the same; while they live, this tells them apart
    return f"{form!r} {id(form.transform)}" if isinstance(form, OwnTransform) else repr(form)


def input_bytes(form: InputForm) -> int:
    """Of one item while it waits."""
    if isinstance(form, Tokenising):
        return 16 * form.max_tokens
    height, width = form.input_size
    return 3 * height * width * (4 if isinstance(form, OwnTransform) else 1)  # float32, or pixels
