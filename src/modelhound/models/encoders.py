"""Models of transformers: text encoders and vision models, from a folder in the layout of the hub.

In:  a folder with config.json and the files of a tokenizer or an image processor; tensors, or none
Out: a card, or a network whose features are pooled over tokens or places
Nothing here knows where the folder or the tensors come from. transformers gives the architectures (its AutoModel), renames
the tensors of older and of headed checkpoints, and draws random weights.

Of a model with an encoder and a decoder (T5, BART) only the encoder is used. A model that only continues texts (GPT-2) is
an encoder too: its tokens are averaged like all others'.
"""

import contextlib
import inspect
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelhound.compat import import_transformers
from modelhound.data.preprocessing import Preprocessing, fraction_kept
from modelhound.data.tokenising import Tokenising, fingerprint_tokenizer, load_tokenizer
from modelhound.errors import ModelError
from modelhound.models.pooling import image_features, text_features
from modelhound.models.source import ModelCard, Network, Weights
from modelhound.settings import ModelSettings

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Encoder", "build_encoder", "describe_encoder"]

_USUAL_TOKENS = 512  # longer texts cost more than they tell, and most encoders take no more
_NAMES_SHOWN = 3
_INTERPOLATIONS = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Pillow's numbers for them, which is how image processors write them down."""
_OF_NO_FORWARD = (
    *("_name_or_path", "architectures", "dtype", "transformers_version", "label", "problem_type", "finetuning_task"),
    *("dropout", "initializer", "layerdrop", "classifier", "summary", "loss", "task_specific", "checkpointing"),
)
"""Words in the names of a configuration's entries that features do not depend on."""
_OF_EARLIER_VERSIONS = {"position_embedding_type", "output_past", "tokenizer_class"}
"""Entries that files still hold, some of them, after the classes of their configurations have forgotten them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Which model, and what is known of it beforehand."""

    model: str
    """What the user calls it; errors do too."""

    folder: Path
    allow_code: bool = False
    """Whether it may run code that lies in its folder."""

    pooling: str = "mean"
    """How its makers pool its tokens."""


def describe_encoder(encoder: Encoder) -> ModelCard:
    """The card of a model, from a sketch without memory."""
    config = _load_config(encoder)
    sketch = _sketch(encoder, config)
    body = _body(sketch)
    is_image = _is_image_model(encoder, body)
    return ModelCard(
        model=encoder.model,
        family=str(config.model_type),
        num_parameters=sum(parameter.numel() for parameter in body.parameters()),
        input_size=_preprocessing(encoder).input_size if is_image else None,
        max_tokens=None if is_image else _position_limit(body) or _USUAL_TOKENS,
    )


def build_encoder(encoder: Encoder, weights: Weights | None, settings: ModelSettings) -> Network:
    """The network with these weights, or with freshly drawn ones if None."""
    config = _load_config(encoder)
    sketch = _sketch(encoder, config)
    is_image = _is_image_model(encoder, _body(sketch))
    # what can be refused without weights comes first
    form = _preprocessing(encoder) if is_image else _tokenising(encoder, _body(sketch), settings)
    lacking: frozenset[str] = frozenset()
    if weights is None:
        module = _draw(encoder, config)
    else:
        module, lacking = _load(encoder, sketch, config, weights)
    body = _body(module).eval()
    if is_image:
        extract: Any = image_features(body, use_pooler=not lacking)
    else:
        pooling = encoder.pooling if settings.pooling == "auto" else settings.pooling
        extract = text_features(body, pooling=pooling, layers=settings.layers)
    return Network(
        module=body,
        extract=extract,
        preprocessing=form,
        config=_what_it_may_read(config),
        without=lacking if is_image else frozenset(),  # texts are pooled by ourselves
    )


def _what_it_may_read(config: Any) -> str:
    """Of a configuration what a forward may ask for: not what names a model or belongs to its training or its head."""
    forgotten: set[str] = set()
    if type(config).__module__.startswith("transformers."):  # code of strangers may ask for any entry
        known = {*dir(type(config)), *inspect.signature(type(config)).parameters}
        forgotten = _OF_EARLIER_VERSIONS - known
    return repr(_without_names({name: each for name, each in config.to_dict().items() if name not in forgotten}))


def _without_names(value: Any) -> Any:
    """Entries in order, and likewise those of parts that have a configuration of their own."""
    if not isinstance(value, dict):
        return value
    said = ((str(name), repr(_without_names(each))) for name, each in value.items())
    return sorted((name, each) for name, each in said if not any(word in name for word in _OF_NO_FORWARD))


def _load_config(encoder: Encoder) -> Any:
    transformers = import_transformers()
    with _explained(encoder, "read the configuration of", "check its config.json"):
        config = transformers.AutoConfig.from_pretrained(
            encoder.folder, trust_remote_code=encoder.allow_code, local_files_only=True
        )
    # Some configurations ask for things that only cost memory here.
    for part in (config, *(getattr(config, name) for name in getattr(config, "sub_configs", {}))):
        if part is not None and not isinstance(part, dict):
            part.use_cache = part.output_hidden_states = part.output_attentions = False
            part.return_dict = True
    if getattr(config, "mask_ratio", 0):  # of what ViTMAE leaves out at random, also when it is not trained
        config.mask_ratio = 0.0
    return config


def _sketch(encoder: Encoder, config: Any) -> "nn.Module":
    """The module without memory for its weights."""
    import torch

    with torch.device("meta"):
        return _draw(encoder, config)


def _draw(encoder: Encoder, config: Any) -> "nn.Module":
    """The module with random weights, on whatever device is the default."""
    import torch

    transformers = import_transformers()
    # For T5 and its kin AutoModel would build, and want weights for, a decoder too.
    is_listed = type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING
    auto = transformers.AutoModelForTextEncoding if is_listed else transformers.AutoModel
    with _explained(encoder, "build", "choose another model"):
        module: nn.Module = auto.from_config(config, dtype=torch.float32, trust_remote_code=encoder.allow_code)
    return module


def _load(encoder: Encoder, sketch: "nn.Module", config: Any, weights: Weights) -> "tuple[nn.Module, frozenset[str]]":
    """The module with these tensors, and which of its pooler's were missing; anything else that is, is a ModelError."""
    import torch

    kind: Any = type(sketch)
    with _explained(encoder, "load the weights of", "fetch them again"):
        module, found = kind.from_pretrained(
            None,
            config=config,
            state_dict=dict(weights),
            dtype=torch.float32,
            ignore_mismatched_sizes=True,  # they are looked at below, all at once
            output_loading_info=True,
        )
    needed = {id(parameter) for parameter in _body(module).parameters()}
    names = {name for name, each in module.named_parameters(remove_duplicate=False) if id(each) in needed}
    missing = sorted(name for name in found["missing_keys"] if name in names)
    misshapen = sorted(each for each in found["mismatched_keys"] if each[0] in names)
    if misshapen:
        shown = [f"{name} is {_shape(theirs)}, not {_shape(ours)}" for name, theirs, ours in misshapen[:_NAMES_SHOWN]]
        raise _unfit(encoder, "tensors of the shapes that config.json tells", shown, len(misshapen))
    body_missing = [name for name in missing if not _is_pooler(name)]
    if body_missing:
        shown = [f"no {name}" for name in body_missing[:_NAMES_SHOWN]]
        raise _unfit(encoder, "a tensor for every weight of the network", shown, len(body_missing))
    return module, frozenset(missing)


def _body(module: "nn.Module") -> "nn.Module":
    """What is run: of an encoder with a decoder, the encoder."""
    config: Any = module.config
    if getattr(config, "is_encoder_decoder", False) and hasattr(module, "decoder"):
        return module.get_encoder()  # type: ignore[operator, no-any-return]
    return module


def _is_image_model(encoder: Encoder, body: "nn.Module") -> bool:
    main_input = getattr(body, "main_input_name", None)
    config: Any = body.config
    has_towers = hasattr(config, "text_config") and hasattr(config, "vision_config")
    if has_towers or main_input not in ("input_ids", "pixel_values"):
        takes = "texts and images together" if has_towers else str(main_input)
        raise ModelError(
            f"cannot use {encoder.model}: expected a model of texts or of images, {type(body).__name__} takes {takes}; "
            "choose another model"
        )
    return bool(main_input == "pixel_values")


def _tokenising(encoder: Encoder, body: "nn.Module", settings: ModelSettings) -> Tokenising:
    """How the model wants its texts; a tokenizer that is not there or does not fit is a ModelError."""
    from torch import nn

    try:
        most = min(settings.tokens or _USUAL_TOKENS, _position_limit(body) or settings.tokens or _USUAL_TOKENS)
        tokenising = Tokenising(
            folder=str(encoder.folder),
            max_tokens=most,
            fingerprint=fingerprint_tokenizer(encoder.folder),
            allow_code=encoder.allow_code,
        )
        tokenizer = load_tokenizer(tokenising)
    except ModelError as error:
        raise ModelError(f"cannot feed {encoder.model}: {error}") from error
    table: Any = body.get_input_embeddings()  # type: ignore[operator]
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    token = max(vocabulary, key=lambda each: vocabulary[each], default=None)
    if isinstance(table, nn.Embedding) and token is not None and vocabulary[token] >= table.num_embeddings:
        raise ModelError(
            f"cannot feed {encoder.model}: expected a tokenizer with ids below {table.num_embeddings}, the size of its "
            f"embedding table, but {token!r} is {vocabulary[token]}; copy the tokenizer's files from the model this one "
            "was made from"
        )
    return replace(tokenising, max_tokens=max(1, min(most, tokenizer.model_max_length or most)))


def _position_limit(body: "nn.Module") -> int | None:
    """How many tokens the model has positions for; None if it counts distances only."""
    from torch import nn

    limits = []
    for name, table in body.named_modules():
        last = name.rpartition(".")[2]
        if isinstance(table, nn.Embedding) and ("position" in last or last == "wpe"):
            # RoBERTa and its kin begin to count after the padding's id, BART and OPT after a constant
            skipped = getattr(table, "offset", None) or (table.padding_idx + 1 if table.padding_idx is not None else 0)
            limits.append(table.num_embeddings - skipped)
    stated = getattr(body.config, "max_position_embeddings", None)
    if isinstance(stated, int) and stated > 0:
        limits.append(stated)
    return min(limits, default=None)


def _preprocessing(encoder: Encoder) -> Preprocessing:
    """How the model wants its images: what its image processor would do, as our own steps."""
    names = ("preprocessor_config.json", "processor_config.json")
    if not any((encoder.folder / name).is_file() for name in names):
        raise ModelError(
            f"cannot feed {encoder.model}: expected {' or '.join(names)} beside its config.json, which say how it wants "
            "images resized and normalised; copy one there from the model this one was made from"
        )
    transformers = import_transformers()
    with _explained(encoder, "read the image processor of", "check its preprocessor_config.json"):
        processor = transformers.AutoImageProcessor.from_pretrained(
            encoder.folder, trust_remote_code=encoder.allow_code, local_files_only=True
        )
        return _as_preprocessing(processor)


def _as_preprocessing(processor: Any) -> Preprocessing:
    size, crop = _sides(processor.size), _sides(getattr(processor, "crop_size", None))
    edge = _value(processor.size, "shortest_edge")
    fraction, mode = 1.0, "squash"
    if edge is not None and getattr(processor, "crop_pct", None) is not None:  # ConvNeXt: crops small inputs only
        size = (edge, edge)
        if edge < 384:  # as its processor has it
            fraction, mode = float(processor.crop_pct), "center"
    elif getattr(processor, "do_center_crop", False) and crop is not None:
        if edge is None and size is not None and size != crop:
            fraction = fraction_kept(min(crop), min(size))  # squashes first; square images come out the same
        elif edge is not None:
            fraction, mode = fraction_kept(min(crop), edge), "center"
        size = crop
    elif edge is not None:
        size, mode = (edge, edge), "center"
    if size is None:
        raise ValueError(f"cannot tell the input size from {processor.size!r}")
    if not 0.0038 < getattr(processor, "rescale_factor", 1 / 255) < 0.004:
        raise ValueError(f"expected pixels divided by 255, found a factor of {processor.rescale_factor}")
    normalises = getattr(processor, "do_normalize", True)
    return Preprocessing(
        input_size=size,
        interpolation=_INTERPOLATIONS[int(getattr(processor, "resample", 2))],
        crop_fraction=fraction,
        crop_mode=mode,
        mean=_channels(processor.image_mean if normalises else 0.0),
        std=_channels(processor.image_std if normalises else 1.0),
    )


def _value(size: Any, name: str) -> int | None:
    """One entry of a size, which is a mapping or an object, depending on the version of transformers."""
    found = size.get(name) if hasattr(size, "get") else getattr(size, name, None)
    return int(found) if found is not None else None


def _sides(size: Any) -> tuple[int, int] | None:
    if size is None or isinstance(size, int):
        return None if size is None else (size, size)
    height, width = _value(size, "height"), _value(size, "width")
    return None if height is None or width is None else (height, width)


def _channels(value: Any) -> tuple[float, ...]:
    return (float(value),) * 3 if isinstance(value, int | float) else tuple(float(each) for each in value)


def _is_pooler(name: str) -> bool:
    return "pooler" in name.split(".")


def _shape(size: Any) -> str:
    return "x".join(str(side) for side in size) or "a number"


def _unfit(encoder: Encoder, rule: str, shown: list[str], count: int) -> ModelError:
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return ModelError(
        f"cannot load the weights of {encoder.model}: expected {rule}, found {', '.join(shown)}{more}; the file belongs to "
        "another model or is not whole"
    )


@contextlib.contextmanager
def _explained(encoder: Encoder, doing: str, advice: str) -> Iterator[None]:
    """What transformers raises over a stranger's files comes in all kinds, and in paragraphs; it warns of its own code too."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ModelError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelError(f"cannot {doing} {encoder.model}: {reason}; {advice}") from error
