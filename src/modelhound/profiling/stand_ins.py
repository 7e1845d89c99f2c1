"""Well-known text encoders where no hub is at hand: the published shape, and a tokenizer made from the data set's own words.

In:  a model of the hub whose published configuration is known, texts
Out: a folder in the layout of the hub, to be used in its place; where the hub answers, nothing
Nothing here is timed. For time and memory only shapes matter, and how many tokens a text becomes: a vocabulary learned from
the same texts cuts them into about as many pieces as the model's own would.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch

from modelhound.compat import import_transformers
from modelhound.data import Dataset
from modelhound.errors import ModelError
from modelhound.models import ModelRef, source_of
from modelhound.models.published import PUBLISHED, is_published
from modelhound.settings import ProfileSettings

__all__ = ["STAND_IN_NOTE", "find_stand_in"]

STAND_IN_NOTE = (
    "the hub does not answer: built from the published configuration, and texts are cut by a tokenizer made from the words "
    "of the data set"
)
_MOST_TEXTS = 2000
_MOST_TOKENS = 512


def find_stand_in(
    model: ModelRef, settings: ProfileSettings, datasets: Sequence[Dataset], folder: Path
) -> ModelRef | None:
    """A folder to use instead of this model; None where it can be used itself, or nothing can stand in for it."""
    texts = next((dataset for dataset in datasets if dataset.modality == "text"), None)
    if settings.weights != "random" or not is_published(model) or texts is None:
        return None
    try:
        with torch.device("meta"):
            source_of(model).build(model.name, None, settings)
    except ModelError:
        return ModelRef("file", str(_write(model.name, texts, folder / model.name.replace("/", "--"))))
    return None


def _write(name: str, dataset: Dataset, folder: Path) -> Path:
    transformers = import_transformers()
    config = transformers.AutoConfig.for_model(**PUBLISHED[name])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    # positions of some models are counted from the padding's id, so it must be the published one
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    special.insert(config.pad_token_id or 0, "[PAD]")
    items = [dataset.read(index) for index in range(min(len(dataset), _MOST_TEXTS))]
    texts = [part for item in items if isinstance(item, tuple) for part in item]
    tokenizer = _learn_tokenizer(texts, special, config.vocab_size)
    kinds = ["token_type_ids"] if getattr(config, "type_vocab_size", 0) > 1 else []
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=_MOST_TOKENS,
        model_input_names=["input_ids", *kinds, "attention_mask"],
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)
    return folder


def _learn_tokenizer(texts: Sequence[str], special: Sequence[str], size: int) -> object:
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import WordPieceTrainer

    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=size, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ids = [(token, special.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ids
    )
    return tokenizer
