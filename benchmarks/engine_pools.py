"""The pools of models and the items that `benchmarks/engine.py` runs on, written to disk.

In:  the name of a pool
Out: references of its models, and of its data
Nothing here is timed. Weights are random: the first model of an architecture is drawn, each further one copies a random earlier
one and draws its last blocks again, as many as `differ` says on average. In two ways they are like weights that have been
trained: no block is switched off, and BatchNorm's statistics are those of pictures, without which items hardly differ any more
after fifty blocks.
"""

import csv
import functools
import json
import os
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelhound.meter import count_cores

if TYPE_CHECKING:
    import torch

__all__ = ["NUM_CLASSES", "POOLS", "make_items", "make_models", "relabel"]

NUM_CLASSES = 10
_RESNETS: dict[str, Any] = {
    "architectures": ["resnet18"],
    "models": 24,
    "items": 1000,
    "side": 96,
    "device": "cpu",
    "halving_every": 3,
    "quick": ("plain", "engine"),
    "contestants": ("plain", "halving", "sharing", "engine", "half", "exhaustive", "again", "remembered", "memory"),
}
POOLS: dict[str, dict[str, Any]] = {
    "resnet152": {
        "architectures": ["resnet152"],
        "models": 35,
        "differ": 0.10,
        "items": 8000,
        "every": 7,
        "halving_every": 7,
        "device": "cuda",
    },
    "mixed8": {
        "architectures": [
            *("resnet18", "resnet50", "resnet152", "efficientnet_b0"),
            *("mobilenetv2_100", "vit_base_patch16_224", "vit_large_patch16_224", "convnext_tiny"),
        ],
        "models": 24,
        "differ": 1.0,
        "items": 4000,
        "every": 3,
        "halving_every": 3,
        "device": "cuda",
        "contestants": ("plain", "halving", "sharing", "engine", "exhaustive", "again", "remembered", "memory"),
    },
    "resnet18-10": {
        **_RESNETS,
        "differ": 0.10,
        "quick": ("plain", "sharing", "engine", "remembered", "memory"),
    },
    "resnet18-25": {**_RESNETS, "differ": 0.25},
    "resnet18-50": {**_RESNETS, "differ": 0.50},
    "small12": {
        "architectures": [
            *("resnet18", "resnet10t", "mobilenetv2_100", "mobilenetv3_small_100", "efficientnet_b0", "convnext_atto"),
            *("regnetx_002", "vit_tiny_patch16_224", "mobilenetv3_large_100", "lcnet_100", "mnasnet_small"),
            "ghostnet_100",
        ],
        "models": 12,
        "differ": 1.0,
        "items": 1000,
        "side": 128,
        "device": "cpu",
        "quick": ("plain", "engine"),
        "contestants": ("plain", "halving", "sharing", "engine", "half", "exhaustive", "again", "remembered", "memory"),
    },
    "texts10": {
        "architectures": ["bert"],
        "models": 10,
        "differ": 0.25,
        "items": 1000,
        "device": "cpu",
        "modality": "text",
        "quick": ("ranker", "engine"),
        "contestants": ("plain", "ranker", "engine", "half", "layermean", "again", "remembered", "memory"),
    },
    "labels": {
        "architectures": ["resnet18"],
        "models": 1,
        "differ": 1.0,
        "items": 10_000,
        "side": 32,
        "device": "auto",
        "quick": (),
        "contestants": ("engine", "relabelled"),
    },
}
_ENCODER = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
_VOCABULARY_SIZE, _MAX_TOKENS = 8000, 128
_SWITCHED_OFF = 1e-3  # BatchNorm's scale begins at 0 in ResNets, that of whole blocks at 1e-6 in ConvNeXt
_SETTLING_ITEMS = 40
_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def make_models(folder: str, pool: dict[str, Any], seed: int = 0) -> list[str]:
    """Write the models as folders in the hub's layout; their references, in order of birth."""
    import torch
    from safetensors.torch import save_file

    draw = random.Random(seed)
    born: dict[str, list[dict[str, torch.Tensor]]] = {}
    references = []
    for number in range(pool["models"]):
        name = pool["architectures"][number % len(pool["architectures"])]
        torch.manual_seed(seed + number)
        place = Path(folder) / f"{number:02}-{name}"
        place.mkdir(parents=True)
        module = _write_encoder(place) if pool.get("modality") == "text" else _write_timm(place, name, pool)
        fresh = None
        if born.get(name) and pool["differ"] < 1:
            state, fresh = _descend(draw.choice(born[name]), pool["differ"], draw)
            module.load_state_dict(state)
        _settle(module, fresh, side=pool.get("side", 224))
        state = {key: tensor.detach().cpu().clone() for key, tensor in module.state_dict().items()}
        born.setdefault(name, []).append(state)
        save_file(state, place / "model.safetensors", metadata={"format": "pt"})
        references.append(f"file:{place}")
    return references


def _write_timm(place: Path, name: str, pool: dict[str, Any]) -> "torch.nn.Module":
    """The configuration of a network as timm pushes it to the hub; a network of that kind, with no block switched off."""
    import torch

    from modelhound.compat import import_timm

    options = {"img_size": pool["side"]} if "vit" in name and pool.get("side") else {}
    module = import_timm().create_model(name, num_classes=0, **options)
    fed = {**module.pretrained_cfg, "num_classes": 0}
    if pool.get("side"):
        fed["input_size"] = (3, pool["side"], pool["side"])
    keep = ("input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std", "num_classes")
    config = {
        "architecture": name,
        "num_classes": 0,
        "model_args": options,
        "pretrained_cfg": {key: fed[key] for key in keep if key in fed},
    }
    (place / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        for name, scale in module.named_parameters():
            if scale.ndim == 1 and name.endswith(("weight", "gamma")) and scale.abs().max() < _SWITCHED_OFF:
                scale.fill_(0.5)
    return module


def _settle(module: "torch.nn.Module", fresh: set[str] | None, *, side: int) -> None:
    """BatchNorm's statistics as a pass over pictures finds them, in these blocks or in all; those of others stay."""
    import torch

    norms = [
        norm
        for name, norm in module.eval().named_modules()
        if isinstance(norm, torch.nn.BatchNorm2d) and (fresh is None or _block(name) in fresh)
    ]
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the statistics of what is seen from here on, and nothing of what was there before
        norm.train()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.no_grad():
        module.to(device)(
            torch.from_numpy(_settling_pictures(side)).permute(0, 3, 1, 2).to(device, torch.float32) / 127.5 - 1
        )


@functools.cache
def _settling_pictures(side: int) -> Any:
    import numpy as np

    return np.stack([_picture(number % NUM_CLASSES, number, side, side) for number in range(_SETTLING_ITEMS)])


def _write_encoder(place: Path) -> "torch.nn.Module":
    """The configuration and tokenizer of an encoder of BERT's kind, and one with weights that tell texts apart."""
    import torch

    from modelhound.compat import import_transformers

    transformers = import_transformers()
    tokenizer = _learn_tokenizer()
    tokenizer.save_pretrained(place)
    config = transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=512, **_ENCODER)
    module = transformers.BertModel(config)
    for parameter in module.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.05)
    config.architectures = ["BertModel"]
    config.save_pretrained(place)
    return module


@functools.cache
def _learn_tokenizer() -> Any:
    """WordPiece, learned from the texts of the pool; once, since learning does not always end with the same pieces."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import TemplateProcessing
    from tokenizers.trainers import WordPieceTrainer

    from modelhound.compat import import_transformers
    from modelhound.data import open_dataset

    dataset = open_dataset("sms")
    tokenizer = Tokenizer(WordPiece(unk_token=_SPECIAL["unk"]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = BertNormalizer(), BertPreTokenizer()
    trainer = WordPieceTrainer(vocab_size=_VOCABULARY_SIZE, special_tokens=list(_SPECIAL.values()), show_progress=False)
    tokenizer.train_from_iterator((str(dataset.read(place)[0]) for place in range(len(dataset))), trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in (_SPECIAL["cls"], _SPECIAL["sep"])]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return import_transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=_MAX_TOKENS,
        **{f"{name}_token": token for name, token in _SPECIAL.items()},
    )


def _descend(parent: "dict[str, Any]", differ: float, draw: random.Random) -> "tuple[dict[str, Any], set[str]]":
    """A copy whose last blocks are drawn again, and which these are; a pooler that nobody asks stays."""
    blocks = [block for block in dict.fromkeys(map(_block, parent)) if block != "pooler"]
    share = min(1.0, max(0.0, draw.gauss(differ, differ / 3)))
    fresh = set(blocks[len(blocks) - max(1, round(share * len(blocks))) :])
    return {key: _redraw(tensor) if _block(key) in fresh else tensor for key, tensor in parent.items()}, fresh


def _redraw(tensor: Any) -> Any:
    """Other weights of the same spread; what is no weight stays."""
    import torch

    return torch.randn_like(tensor) * tensor.std() if tensor.ndim > 1 else tensor.clone()


def _block(name: str) -> str:
    """layer3.5 of layer3.5.conv1.weight: everything up to the last number, or the first word."""
    words = name.split(".")
    numbers = [place for place, word in enumerate(words[:3]) if word.isdigit()]
    return ".".join(words[: numbers[-1] + 1]) if numbers else words[0]


def make_items(folder: Path, pool: dict[str, Any]) -> str:
    """Photo-like JPEGs in a folder per class, or texts in one file; where they are."""
    if pool.get("modality") == "text":
        return _write_texts(folder / "texts.csv", pool["items"])
    per_class = -(-pool["items"] // NUM_CLASSES)
    small = pool.get("side", 224) <= 32
    jobs = [(folder / "items", place % NUM_CLASSES, place, small) for place in range(per_class * NUM_CLASSES)]
    with ProcessPoolExecutor(count_cores()) as workers:
        list(workers.map(_draw_image, jobs, chunksize=50))
    return str(folder / "items")


def relabel(data: str, folder: Path) -> str:
    """The same files under other classes: two of three move on by one."""
    for number, path in enumerate(sorted(Path(data).glob("*/*.jpg"))):
        label = (int(path.parent.name.removeprefix("class")) + bool(number % 3)) % NUM_CLASSES
        place = folder / f"class{label}"
        place.mkdir(parents=True, exist_ok=True)
        os.link(path, place / path.name)
    return str(folder)


def _write_texts(path: Path, num_items: int) -> str:
    from modelhound.data import open_dataset

    dataset = open_dataset("sms", limit=num_items)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        for place, target in enumerate(dataset.targets.tolist()):
            writer.writerow((str(dataset.read(place)[0]), dataset.class_names[target]))
    return str(path)


def _draw_image(job: tuple[Path, int, int, bool]) -> None:
    """About 70 KB as a JPEG, like a photo; a small one, 1 KB."""
    from PIL import Image

    folder, label, number, small = job
    width, height = (28, 28) if small else (500, 375)
    place = folder / f"class{label}" / f"{number:05}.jpg"
    place.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(_picture(label, number, width, height)).save(place, quality=88)


def _picture(label: int, number: int, width: int, height: int) -> Any:
    """Waves of the class's colours and directions under noise."""
    import numpy as np

    generator = np.random.default_rng(number)
    across, down = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    angle = label * 0.6 + generator.normal(0, 0.5)
    waves = np.sin(
        2 * np.pi * (3 + label % 4 * 2) * (across * np.cos(angle) + down * np.sin(angle)) + generator.uniform(0, 6)
    )
    tint = np.array([np.cos(label), np.sin(label * 2), np.cos(label * 3 + 1)])
    picture = (
        128
        + 50 * waves[..., None] * (0.5 + 0.5 * tint)
        + 30 * generator.normal(size=3)
        + 22 * generator.normal(size=(height, width, 3))
    )
    return picture.clip(0, 255).astype(np.uint8)
