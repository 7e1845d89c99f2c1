"""From texts to the numbers that a text encoder takes.

In:  a Tokenising, which says which tokenizer and how many tokens at most, and some texts
Out: the encoder's input tensors, padded to the longest of these texts, and how many texts had to be cut
Nothing here knows a model. transformers is imported when a tokenizer is first needed and not before.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelhound.compat import import_transformers
from modelhound.errors import ModelError

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["TOKENIZER_FILES", "Tokenising", "fingerprint_tokenizer", "load_tokenizer", "tokenise"]

_VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "bpe.codes",
)
TOKENIZER_FILES = (
    *_VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""What decides how a tokenizer cuts texts, in the layout of the hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenising:
    """How a text encoder wants its texts. It pickles: every process loads the tokenizer from its folder."""

    folder: str
    """Where the tokenizer's files lie, in the layout of the hub."""

    max_tokens: int
    """Longer texts are cut to this many tokens, the special ones included."""

    fingerprint: str
    """The same for tokenizers that cut all texts alike, wherever they lie."""

    allow_code: bool = False
    """Whether the tokenizer may run code that lies in its folder."""


def fingerprint_tokenizer(folder: Path) -> str:
    """A SHA-256 over the names and contents of the tokenizer's files; a folder without a vocabulary is a ModelError.

    transformers would make up a vocabulary of special tokens alone, and every text would become the same.
    """
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if not any(file.name in _VOCABULARIES for file in files):
        raise ModelError(
            f"cannot find a tokenizer in {str(folder)!r}: expected one of {', '.join(_VOCABULARIES)}, copy the tokenizer's "
            "files there from the model this one was made from"
        )
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.name} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def load_tokenizer(tokenising: Tokenising) -> Any:
    """The tokenizer of transformers; one that cannot be loaded is a ModelError."""
    return _load(tokenising.folder, tokenising.fingerprint, tokenising.allow_code)


def tokenise(texts: Sequence[tuple[str, ...]], tokenising: Tokenising) -> "tuple[dict[str, Tensor], int]":
    """Input tensors [num_texts, longest], and how many of the texts were longer than allowed."""
    import torch

    tokenizer = load_tokenizer(tokenising)
    texts = [tuple(_as_unicode(part) for part in text) for text in texts]
    first = [text[0] for text in texts]
    second = [text[1] for text in texts] if len(texts[0]) > 1 else None
    encoded = tokenizer(first, second, truncation=True, max_length=tokenising.max_tokens)
    num_truncated = _count_cut(tokenizer, texts, encoded, tokenising.max_tokens)
    _fill_empty(tokenizer, encoded)
    padded = tokenizer.pad(encoded, padding=True, return_tensors="pt")
    return {name: tensor for name, tensor in padded.items() if isinstance(tensor, torch.Tensor)}, num_truncated


@lru_cache(maxsize=16)
def _load(folder: str, fingerprint: str, allow_code: bool) -> Any:
    """Once per tokenizer and process; the fingerprint is there so that a folder whose files change is loaded again."""
    transformers = import_transformers()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=allow_code, local_files_only=True
        )
    except Exception as error:  # a stranger's files: JSON, keys, vocabularies, native code; all kinds of errors
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"cannot load the tokenizer in {folder!r}: {reason[:300]}; expected tokenizer.json or the vocabulary "
            "of a tokenizer that transformers knows, copy it there from the model this one was made from"
        ) from error
    # Positions count from the left, and the first token is where encoders that have one keep their summary.
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:  # masked out, so any token will do
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token or tokenizer.convert_ids_to_tokens(0)
    return tokenizer


def _as_unicode(text: str) -> str:
    """Half a character, which JSON can hold, is no text to a tokenizer; it becomes a question mark."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="replace").decode()
    return text


def _count_cut(tokenizer: Any, texts: Sequence[tuple[str, ...]], encoded: Any, max_tokens: int) -> int:
    """How many of the texts would have gone on."""
    if encoded.encodings is not None:
        return sum(bool(encoding.overflowing) for encoding in encoded.encodings)
    # A tokenizer written in Python does not say. Only texts that fill all tokens need a second look.
    full = [place for place, ids in enumerate(encoded["input_ids"]) if len(ids) >= max_tokens]
    if not full:
        return 0
    first = [texts[place][0] for place in full]
    second = [texts[place][1] for place in full] if len(texts[0]) > 1 else None
    whole = tokenizer(first, second, truncation=False, verbose=False)
    return sum(len(ids) > max_tokens for ids in whole["input_ids"])


def _fill_empty(tokenizer: Any, encoded: Any) -> None:
    """Give a text without any token one: there is no mean over nothing. Tokenizers without special tokens need this."""
    known = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    filler = next((token for token in known if token is not None), 0)
    for place, ids in enumerate(encoded["input_ids"]):
        if not ids:
            for name in encoded:
                encoded[name][place] = [filler if name == "input_ids" else int(name == "attention_mask")]
