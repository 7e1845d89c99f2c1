"""Items read and decoded once for many models, and kept as 8-bit pixels.

In:  a Dataset of images, the forms of input that all models want, a device
Out: a DecodedChunk, which gives any of the models its inputs
Nothing here knows a model. Models whose resize and crop are the same (a Variant) share pixels; what is left, to divide by 255
and normalise, is done for each batch on the device. A user's own transform shares only the decoding.

On a CPU the inputs are those of `load_batches` to the last bit. On a CUDA device JPEGs may be decoded by nvJPEG, which rounds
in other places: see `decoders` for how far it may stray.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelhound.data.dataset import Dataset
from modelhound.data.decode.decoders import Choice, choose_decoder, find_decoders
from modelhound.data.decode.decoding import decode_on_device, decode_on_host
from modelhound.data.loading import InputForm, check_modality
from modelhound.data.normalising import normalise
from modelhound.data.preprocessing import OwnTransform, Preprocessing, Variant
from modelhound.data.source import UnreadableItemError
from modelhound.data.sources.prepared import PreparedReader
from modelhound.data.tokenising import Tokenising
from modelhound.errors import ModelError
from modelhound.meter import count_cores
from modelhound.records import Progress, Watch, silent

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["DecodedChunk", "decode"]

_TASK = "decoding items"
_NUM_SAMPLES = 8  # files that decoders are measured on
_MAX_THREADS = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodedChunk:
    """Some items, ready for any of the models they were decoded for."""

    positions: Sequence[int]
    """Where the items stand in the data set."""

    device: str
    """Where inputs are wanted; the pixels lie there too, or in memory of the host that is pinned."""

    choice: Choice | None
    """Which decoder was used and why; None where the data set does its own reading."""

    pixels: "dict[Variant, Tensor]" = field(repr=False)
    """uint8 [items, height, width, 3]"""

    own: "dict[OwnTransform, Tensor]" = field(repr=False)
    """What users' own transforms gave: float32 [items, channels, height, width]."""

    failed: dict[OwnTransform, str] = field(default_factory=dict, repr=False)
    """Own transforms that could not make something of every item, and why."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def num_bytes(self) -> int:
        return sum(each.nbytes for each in (*self.pixels.values(), *self.own.values()))

    def inputs(
        self, form: InputForm, start: int, stop: int, *, dtype: "torch.dtype | None" = None, channels_last: bool = False
    ) -> "Tensor":
        """Inputs [items, 3, height, width] on the device, of the chunk's items `start` to `stop`; float32 unless told. Of a
        transform that failed, a ModelError: the other models go on."""
        import torch

        dtype = dtype or torch.float32
        layout = torch.channels_last if channels_last else torch.contiguous_format
        if isinstance(form, OwnTransform):
            if form in self.failed:
                raise ModelError(self.failed[form])
            made = self._here(self.own[form][start:stop])
            return made.to(dtype=dtype, memory_format=layout)
        assert isinstance(form, Preprocessing)  # texts were refused when decoding began
        pixels = self._here(self.pixels[Variant.of(form)][start:stop])
        return normalise(pixels, form, dtype, layout)

    def _here(self, tensor: "Tensor") -> "Tensor":
        import torch

        if self.device == "cpu":
            return tensor
        # It was made on another stream; without this its memory might be given away while this one still reads it.
        if tensor.is_cuda:
            tensor.record_stream(torch.cuda.current_stream(tensor.device))
        return tensor.to(self.device, non_blocking=True)


def decode(
    dataset: Dataset,
    positions: Sequence[int],
    forms: Sequence[InputForm],
    *,
    device: str = "cpu",
    threads: int | None = None,
    keep_on_host: bool = False,
    choice: Choice | None = None,
    watch: Watch = silent,
) -> DecodedChunk:
    """These items, decoded once for all `forms`.

    With `keep_on_host`, pixels for a CUDA device stay in pinned memory and are copied batch by batch. `choice` is an earlier
    choice of a decoder; without one, decoders are measured on a few of the items.
    """

    def tell(done: int) -> None:
        watch(Progress(task=_TASK, done=done, total=len(positions)))

    for form in forms:
        check_modality(dataset, form)
    wanted = _distinct(forms)
    variants = {Variant.of(form): form for form in wanted if isinstance(form, Preprocessing)}
    transforms = [form for form in wanted if isinstance(form, OwnTransform)]
    num_threads = threads or min(_MAX_THREADS, count_cores())
    # Users' transforms take PIL images, and prepared items are no files: both are the host's business.
    as_images = bool(transforms) or isinstance(dataset.reader, PreparedReader)
    choice = choice or _choose(dataset, positions, "cpu" if as_images else device, num_threads)
    tell(0)
    if device == "cpu" or as_images or choice is None:
        pixels, own, failed = decode_on_host(
            dataset,
            positions,
            variants,
            transforms,
            choice.decoder if choice else None,
            num_threads,
            tell,
            pin=device != "cpu",
        )
        if device != "cpu" and not keep_on_host:
            pixels = {variant: each.to(device, non_blocking=True) for variant, each in pixels.items()}
            own = {form: each.to(device, non_blocking=True) for form, each in own.items()}
    else:
        own, failed = {}, {}
        pixels = decode_on_device(
            dataset, positions, list(variants), choice.decoder, device, num_threads, tell, keep_on_host=keep_on_host
        )
    return DecodedChunk(positions=positions, device=device, choice=choice, pixels=pixels, own=own, failed=failed)


def _distinct(forms: Sequence[InputForm]) -> "list[Preprocessing | OwnTransform]":
    """One form for each set of pixels that must be kept."""
    found: dict[Variant | OwnTransform, Preprocessing | OwnTransform] = {}
    for form in forms:
        assert not isinstance(form, Tokenising)  # refused when decoding began
        found.setdefault(form if isinstance(form, OwnTransform) else Variant.of(form), form)
    return list(found.values())


def _choose(dataset: Dataset, positions: Sequence[int], device: str, threads: int) -> Choice | None:
    """None where the reader does not give files away."""
    read_bytes = getattr(dataset.reader, "read_bytes", None)
    if read_bytes is None or not positions:
        return None
    if len(find_decoders(device)) == 1:
        return Choice(decoder=find_decoders(device)[0], files_per_second={})
    files = []
    step = -(-len(positions) // _NUM_SAMPLES)  # at most so many: what is read here is not held for later any more
    for position in positions[::step]:
        try:
            files.append(read_bytes(position))
        except UnreadableItemError:
            continue  # named when its turn comes
    return choose_decoder(files, device=device, threads=threads)
