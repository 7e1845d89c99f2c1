"""Texts tokenised once for all models that cut them alike, in batches of similar length.

In:  a Dataset of texts and the Tokenisings that the models want
Out: for each a TokenisedTexts, which gives batches: the items' positions, and the tensors that a text encoder takes
Nothing here knows a model. A batch holds what `tokenise` gives for the same texts, to the last token; but since it is made of
texts of similar length, there is little padding to compute on, and features must be put back in order by the positions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from modelhound.data.dataset import Dataset
from modelhound.data.loading import check_modality
from modelhound.data.tokenising import Tokenising, load_tokenizer, tokenise
from modelhound.errors import RequestError
from modelhound.records import Progress, Watch, silent

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TokenBatch", "TokenisedTexts", "tokenise_once"]

_TASK = "tokenising texts"
_AT_ONCE = 1024  # texts: the tokenizer's own threads have enough to do, and Ctrl-C is answered in between
_MASK = "attention_mask"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Some texts, ready for a text encoder."""

    positions: "Tensor"
    """int64 [texts]: where they stand in the data set; features[positions] = ... puts features back in order."""

    inputs: "dict[str, Tensor]"
    """int64 [texts, longest] each."""

    def __len__(self) -> int:
        return len(self.positions)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenisedTexts:
    """All texts of a data set as one tokenizer cuts them, without padding."""

    lengths: "Tensor" = field(repr=False)
    """int64 [texts], in tokens, the special ones included."""

    num_truncated: int
    """How many texts were longer than the model takes."""

    values: "Mapping[str, Tensor]" = field(repr=False)
    """For each of the encoder's inputs the values of all texts, one after the other; int32, as half the memory does."""

    padding: Mapping[str, int]
    """For each of the encoder's inputs what stands behind shorter texts."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def num_tokens(self) -> int:
        return int(self.lengths.sum())

    def batches(self, batch: int, *, max_batch_tokens: int | None = None) -> Iterator[TokenBatch]:
        """All texts, the longest first, at most `batch` at a time and, padded, at most `max_batch_tokens`.

        The longest first, so that a batch that does not fit into memory is met at once. Texts of equal length keep their order.
        """
        if batch < 1:
            raise RequestError(f"cannot make batches of {batch} texts: expected at least 1, use --batch 64")
        order = self.lengths.argsort(descending=True, stable=True)
        firsts = self.lengths.cumsum(0) - self.lengths
        start = 0
        while start < len(order):
            longest = int(self.lengths[order[start]])
            fitting = batch if max_batch_tokens is None else max(1, min(batch, max_batch_tokens // max(1, longest)))
            yield self._batch(order[start : start + fitting], longest, firsts)
            start += fitting

    def _batch(self, positions: "Tensor", longest: int, firsts: "Tensor") -> TokenBatch:
        import torch

        lengths = self.lengths[positions]
        columns = torch.arange(longest)
        within = columns < lengths[:, None]
        places = (firsts[positions, None] + columns)[within]
        inputs = {}
        for name, values in self.values.items():
            padded = torch.full(within.shape, self.padding[name], dtype=torch.int64)
            padded[within] = values[places].long()
            inputs[name] = padded
        return TokenBatch(positions=positions, inputs=inputs)


def tokenise_once(
    dataset: Dataset, tokenisings: Sequence[Tokenising], *, watch: Watch = silent
) -> dict[Tokenising, TokenisedTexts]:
    """What each Tokenising makes of the texts; those with the same tokenizer and length share one result."""
    for each in tokenisings:
        check_modality(dataset, each)
    made: dict[tuple[str, int], TokenisedTexts] = {}
    distinct = {(each.fingerprint, each.max_tokens): each for each in reversed(tokenisings)}
    total = len(distinct) * len(dataset)
    for number, (key, tokenising) in enumerate(reversed(distinct.items())):
        made[key] = _tokenise_all(dataset, tokenising, number * len(dataset), total, watch)
    return {each: made[each.fingerprint, each.max_tokens] for each in tokenisings}


def _tokenise_all(dataset: Dataset, tokenising: Tokenising, before: int, total: int, watch: Watch) -> TokenisedTexts:
    import torch

    lengths: list[Tensor] = []
    values: dict[str, list[Tensor]] = {}
    num_truncated = 0
    watch(Progress(task=_TASK, done=before, total=total))
    for start in range(0, len(dataset), _AT_ONCE):
        stop = min(start + _AT_ONCE, len(dataset))
        texts = [_read_text(dataset, index) for index in range(start, stop)]
        for inputs, counts, cut in _tokenise_some(texts, tokenising):
            within = torch.arange(int(counts.max())) < counts[:, None]
            for name, tensor in inputs.items():
                values.setdefault(name, []).append(tensor[within].int())
            lengths.append(counts)
            num_truncated += cut
        watch(Progress(task=_TASK, done=before + stop, total=total))
    return TokenisedTexts(
        lengths=torch.cat(lengths),
        num_truncated=num_truncated,
        values={name: torch.cat(parts) for name, parts in values.items()},
        padding=_find_padding(tokenising, list(values)),
    )


def _read_text(dataset: Dataset, index: int) -> tuple[str, ...]:
    text = dataset.read(index)
    assert isinstance(text, tuple)  # images were refused before
    return text


def _tokenise_some(
    texts: list[tuple[str, ...]], tokenising: Tokenising
) -> "Iterator[tuple[dict[str, Tensor], Tensor, int]]":
    """Padded tensors, the lengths without padding, and how many of the texts were cut."""
    import torch

    inputs, num_cut = tokenise(texts, tokenising)
    if _MASK in inputs:
        yield inputs, inputs[_MASK].sum(1), num_cut
        return
    for text in texts:  # an encoder without a mask: only a text alone shows where it ends
        alone, cut = tokenise([text], tokenising)
        yield alone, torch.tensor([alone["input_ids"].shape[1]]), cut


def _find_padding(tokenising: Tokenising, names: Sequence[str]) -> dict[str, int]:
    """What the tokenizer itself puts behind the shorter of two texts."""
    made = load_tokenizer(tokenising).pad(
        {name: [[1], [1, 1]] for name in names}, padding=True, return_tensors="pt", return_attention_mask=_MASK in names
    )
    return {name: int(made[name][0, 1]) for name in names}
