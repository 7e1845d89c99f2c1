"""Small text encoders and vision models with random weights, written to disk in the layout of the hub."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from modelhound.compat import import_transformers

WORDS = tuple(
    "the cat sat on a mat while some dogs ran far away from it all and then came back for tea with milk".split()  # noqa: SIM905
)
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY_SIZE = len(SPECIAL) + len(WORDS)

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "pad_token_id": 0,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertConfig", _SMALL),
    "roberta": ("RobertaConfig", {**_SMALL, "type_vocab_size": 1}),
    "albert": ("AlbertConfig", {**_SMALL, "embedding_size": 16}),
    "distilbert": (
        "DistilBertConfig",
        {
            "vocab_size": VOCABULARY_SIZE,
            "dim": 32,
            "n_layers": 3,
            "n_heads": 4,
            "hidden_dim": 48,
            "max_position_embeddings": 40,
        },
    ),
    "longformer": ("LongformerConfig", {**_SMALL, "attention_window": 8, "type_vocab_size": 1}),
    "mpnet": ("MPNetConfig", _SMALL),
    "electra": ("ElectraConfig", {**_SMALL, "embedding_size": 16}),
    "deberta": ("DebertaConfig", {**_SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}),
    "deberta-v2": (
        "DebertaV2Config",
        {**_SMALL, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "conv_kernel_size": 3},
    ),
    "xlm-roberta": ("XLMRobertaConfig", {**_SMALL, "type_vocab_size": 1}),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": VOCABULARY_SIZE, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 40},
    ),
    "t5": (
        "T5Config",
        {"vocab_size": VOCABULARY_SIZE, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4},
    ),
    "bart": (
        "BartConfig",
        {
            "vocab_size": VOCABULARY_SIZE,
            "d_model": 32,
            "encoder_layers": 3,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "max_position_embeddings": 40,
            "pad_token_id": 0,
        },
    ),
}
"""Model type -> the name of its configuration and what makes it small."""

ROTARY: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {**_SMALL, "num_key_value_heads": 4}),
    "modernbert": ("ModernBertConfig", {**_SMALL, "global_attn_every_n_layers": 2, "local_attention": 8}),
}
"""The same of those that turn by positions what attention compares; their angles follow from the configuration."""


def write_tokenizer(folder: Path, words: Sequence[str] = WORDS, **options: Any) -> None:
    """A tokenizer that knows these words and puts [CLS] and [SEP] around them."""
    ids = {word: place for place, word in enumerate((*SPECIAL, *words))}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": token for name, token in names.items()},
        **options,
    ).save_pretrained(folder)


def write_encoder(folder: Path, family: str = "bert", *, seed: int = 0, tokenizer: bool = True, **changes: Any) -> Path:
    """A folder with config.json, model.safetensors and a tokenizer."""
    transformers = import_transformers()
    name, options = (FAMILIES | ROTARY)[family]
    config = getattr(transformers, name)(**{**options, **changes})
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # DeBERTa's own code uses what torch has deprecated
        torch.manual_seed(seed)
        module = transformers.AutoModel.from_config(config)
        for (
            parameter
        ) in module.parameters():  # layers as drawn hardly differ: fine for training, not for telling them apart
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
    module.save_pretrained(folder)
    if tokenizer:
        write_tokenizer(folder)
    return folder


def write_vit(folder: Path, *, with_pooler: bool = True, **processor: Any) -> Path:
    """A vision transformer for images of 32 pixels, with its image processor's settings."""
    transformers = import_transformers()
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32, patch_size=8
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = transformers.ViTModel(config)
    module.save_pretrained(folder)
    kept = {name: each for name, each in module.state_dict().items() if with_pooler or not name.startswith("pooler")}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    settings = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "do_normalize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "resample": 3,
        "size": {"height": 32, "width": 32},
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.2, 0.2, 0.2],
        **processor,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def write_timm(folder: Path, architecture: str = "test_resnet", *, num_classes: int = 7) -> Path:
    """A folder as timm pushes it to the hub."""
    from modelhound.compat import import_timm

    timm = import_timm()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        module = timm.create_model(architecture, num_classes=num_classes)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(module.state_dict(), folder / "model.safetensors")
    trained = {
        **{name: module.pretrained_cfg[name] for name in ("first_conv", "classifier", "interpolation", "crop_pct")},
        "input_size": [3, 96, 96],
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "num_classes": num_classes,
        "tag": "our_own",
        "license": "apache-2.0",
    }
    config = {"architecture": architecture, "num_classes": num_classes, "pretrained_cfg": trained}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
