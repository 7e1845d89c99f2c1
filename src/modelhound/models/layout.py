"""A folder in the layout of the hub: config.json says what the model is, other files hold its weights and its tokenizer.

In:  such a folder, wherever it came from
Out: a card, or the network with given tensors
Nothing here reaches a network. Two kinds of config.json are understood: timm's, which names an architecture of timm, and
that of transformers, which names a model type. Code that comes with a model is never run unless its user named the model.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelhound.compat import import_timm
from modelhound.errors import ModelError
from modelhound.models.source import ModelCard, Network, Weights
from modelhound.models.timm import mould_of, wrap_timm_module
from modelhound.settings import PLAIN, ModelSettings

if TYPE_CHECKING:
    from torch import nn

__all__ = ["CARD_FILES", "Layout", "build_timm_network", "network_files"]

_POOLING = "1_Pooling/config.json"
CARD_FILES = ("config.json", "preprocessor_config.json", "processor_config.json")
"""What a card is made from; a folder need not have all of them."""

_SAYS_NOTHING = (
    "_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "id2label",
    "label2id",
)
"""What the configurations of two models may differ in that are built alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """One folder."""

    model: str
    """What the user calls it, such as hf:ORG/NAME; errors do too."""

    folder: Path

    def describe(self) -> ModelCard:
        config = self._config()
        if _is_timm(config):
            return _describe_timm(self.model, config)
        from modelhound.models.encoders import Encoder, describe_encoder

        self._check_code(config, allowed=False)
        return describe_encoder(Encoder(model=self.model, folder=self.folder))

    def build(self, weights: Weights | None, settings: ModelSettings = PLAIN, *, allow_code: bool = False) -> Network:
        config = self._config()
        if _is_timm(config):
            architecture, trained, options = _read_timm(self.model, config)
            return build_timm_network(self.model, architecture, weights, trained=trained, options=options)
        from modelhound.models.encoders import Encoder, build_encoder

        self._check_code(config, allowed=allow_code)
        encoder = Encoder(model=self.model, folder=self.folder, allow_code=allow_code, pooling=self._stated_pooling())
        return build_encoder(encoder, weights, settings)

    def mould(self, settings: ModelSettings = PLAIN) -> str | None:
        """See ModelSource.mould."""
        config = self._config()
        if _is_timm(config):
            architecture, trained, options = _read_timm(self.model, config)
            known = _look_up(self.model, architecture)
            return mould_of(f"{architecture} {sorted(options.items())}", {**known, **trained})
        if config.get("auto_map"):
            return None  # it brings its own code, and others that look the same may bring another
        from modelhound.data.tokenising import TOKENIZER_FILES

        digest = hashlib.sha256(self._stated_pooling().encode())
        built = {name: value for name, value in config.items() if name not in _SAYS_NOTHING}
        digest.update(json.dumps([built, settings.pooling, settings.layers, settings.tokens], sort_keys=True).encode())
        for name in (*TOKENIZER_FILES, "preprocessor_config.json", "processor_config.json"):
            if (self.folder / name).is_file():
                digest.update(name.encode() + (self.folder / name).read_bytes())
        return f"transformers {digest.hexdigest()}"

    def _config(self) -> dict[str, Any]:
        """config.json, which must be of a kind that is known."""
        path = self.folder / "config.json"
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelError(
                f"cannot use {self.model}: expected a config.json of transformers or timm, {_list_files(self.folder)}; "
                "choose another model, or for one file of weights name its network with --arch"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ModelError(
                f"cannot use {self.model}: expected JSON in its config.json, but {error}; fetch it again"
            ) from error
        if not isinstance(config, dict) or not (_is_timm(config) or isinstance(config.get("model_type"), str)):
            keys = ", ".join(sorted(config)[:6]) if isinstance(config, dict) else type(config).__name__
            raise ModelError(
                f"cannot use {self.model}: expected a config.json with architecture (timm) or model_type (transformers), "
                f"found {keys or 'nothing'}; choose another model"
            )
        return config

    def _check_code(self, config: Mapping[str, Any], *, allowed: bool) -> None:
        if config.get("auto_map") and not allowed:
            source, _, name = self.model.partition(":")
            name = name.partition("@")[0] if source == "hf" else name
            raise ModelError(
                f"cannot use {self.model}: expected a network that transformers has, this one brings its own code, which "
                f"would run here; read it, and if you trust it add --allow-code {name}"
            )

    def _stated_pooling(self) -> str:
        """How a model of sentence-transformers pools; all others' tokens are averaged."""
        try:
            stated = json.loads((self.folder / _POOLING).read_text(encoding="utf-8"))
            modes = {"pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}
            asked = {name for key, name in modes.items() if stated.get(key)} | {stated.get("pooling_mode")}
        except (OSError, ValueError, AttributeError, TypeError, RecursionError):
            return "mean"
        # several at once are concatenated there; the mean is nearly always one of them
        is_one = not stated.get("pooling_mode_mean_tokens") and len(asked - {None}) == 1
        return str(next(iter(asked - {None}))) if is_one and asked & {"cls", "max"} else "mean"


def network_files() -> tuple[str, ...]:
    """What a network is made from, its weights apart; a folder need not have all of them."""
    from modelhound.data.tokenising import TOKENIZER_FILES  # listing models needs none of that room

    return (*CARD_FILES, _POOLING, *TOKENIZER_FILES)


def build_timm_network(
    model: str,
    architecture: str,
    weights: Weights | None,
    *,
    trained: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Network:
    """A network of timm. Only features matter, so the classifier is made to fit the tensors, whatever they tell apart.

    `trained` is what is known of the training (preprocessing, classes) beyond timm's own entry for the architecture;
    `options` go to the architecture. Tensors that are missing, left over or of another shape are a ModelError.
    """
    from modelhound.models.adopting import build_around  # needs torch, which listing models does not

    trained, options = dict(trained or {}), dict(options or {})
    if weights is None:
        return wrap_timm_module(_create(model, architecture, trained, options))
    if not weights:
        raise ModelError(f"cannot build {model}: expected tensors, found none; fetch its weights again")
    # timm's own loading applies the renaming that older checkpoints need. Given tensors come before whatever a
    # configuration says of where to find some, unless it names a source.
    loading = {**trained, "state_dict": dict(weights), "source": "", "label_offset": 0}
    known = _look_up(model, architecture)
    first_error: RuntimeError | None = None
    for num_classes in _likely_classes(weights, {**known, **trained}):
        overlay = {**loading, "num_classes": num_classes}
        try:
            return wrap_timm_module(
                build_around(
                    weights,
                    lambda overlay=overlay, num_classes=num_classes: _create(  # type: ignore[misc]
                        model, architecture, overlay, {**options, "num_classes": num_classes}, pretrained=True
                    ),
                )
            )
        except RuntimeError as error:  # how torch says that tensors do not fit
            first_error = first_error or error
    raise ModelError(
        f"cannot build {model}: expected the tensors of timm:{architecture}, found others: {_first_names(first_error)}; "
        "name the network they belong to with --arch, or fetch them again"
    ) from first_error


def _create(
    model: str, architecture: str, trained: Mapping[str, Any], options: Mapping[str, Any], *, pretrained: bool = False
) -> "nn.Module":
    timm = import_timm()
    _look_up(model, architecture)
    known = {field.name for field in fields(timm.models.PretrainedCfg)}  # older files have entries that went out of use
    overlay = {name: value for name, value in trained.items() if name in known}
    try:
        module: nn.Module = timm.create_model(
            architecture, pretrained=pretrained, pretrained_cfg_overlay=overlay or None, **options
        )
    except Exception as error:  # options that a stranger wrote down
        if pretrained and isinstance(error, RuntimeError):
            raise  # the tensors' fault; the caller knows what to say
        raise ModelError(
            f"cannot build {model}: timm's {architecture} does not take what its configuration says: {error}; "
            "check its config.json"
        ) from error
    return module


def _look_up(model: str, architecture: str) -> dict[str, Any]:
    """What timm knows of an architecture and the weights that a tag behind its dot names; nothing of some."""
    models = import_timm().models
    try:
        is_there = models.is_model(architecture)
        entry = models.get_pretrained_cfg(architecture)
    except RuntimeError:  # it has the architecture, but no such weights
        is_there, entry = False, None
    if not is_there:
        raise ModelError(
            f"cannot build {model}: expected an architecture of timm, found {architecture!r}; "
            "see `hound models 'timm:*'`, or install a newer timm"
        )
    return entry.to_dict() if entry else {}


def _likely_classes(weights: Weights, trained: Mapping[str, Any]) -> list[int]:
    """How many classes the tensors tell apart, the likeliest first; 0 is a network without a classifier."""
    names = trained.get("classifier") or ()
    for name in (names,) if isinstance(names, str) else names:
        if f"{name}.weight" in weights:
            return [int(weights[f"{name}.weight"].shape[0])]
    return list(dict.fromkeys([int(trained.get("num_classes") or 0), 0]))


def _first_names(error: Exception | None) -> str:
    """The first few tensors that torch complains of, of some hundred."""
    lines = [line.strip() for line in str(error).splitlines()[1:]]
    parts = []
    for word in ("Missing", "Unexpected"):
        for line in lines:
            names = re.findall(r'"([^"]+)"', line) if line.startswith(word) else []
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                parts.append(f"{word.lower()} {', '.join(names[:3])}{more}")
    parts += [line.rstrip(".") for line in lines if line.startswith("size mismatch")][:3]
    return "; ".join(parts) or str(error)


def _describe_timm(model: str, config: Mapping[str, Any]) -> ModelCard:
    import torch

    architecture, trained, options = _read_timm(model, config)
    module: Any
    try:
        with torch.device("meta"):  # shapes without memory
            module = _create(model, architecture, trained, options)
    except ModelError:  # RegNets compute with values while they are made, which older torch cannot do there
        module = _create(model, architecture, trained, options)
    _, height, width = module.pretrained_cfg.get("input_size", (3, 224, 224))
    return ModelCard(
        model=model,
        family=import_timm().models.model_entrypoint(architecture.partition(".")[0]).__module__.rpartition(".")[2],
        num_parameters=sum(parameter.numel() for parameter in module.parameters()),
        input_size=(height, width),
        trained_on=str(trained.get("tag") or "unknown"),
        licence=str(trained.get("license") or "unknown"),
    )


def _read_timm(model: str, config: Mapping[str, Any]) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """The architecture, what is said of its training, and its options; older files keep all of it on one level."""
    trained = config.get("pretrained_cfg")
    if not isinstance(trained, dict):
        trained = {name: value for name, value in config.items() if name not in ("architecture", "model_args")}
    trained = {name: value for name, value in trained.items() if name != "architecture"}
    if config.get("num_classes") is not None:
        trained["num_classes"] = config["num_classes"]
    options = config.get("model_args") or {}
    if not isinstance(options, dict):
        raise ModelError(
            f"cannot use {model}: expected names and values in model_args of its config.json, found {options!r:.60}; fetch it "
            "again"
        )
    return str(config["architecture"]), trained, dict(options)


def _is_timm(config: Any) -> bool:
    return isinstance(config, dict) and isinstance(config.get("architecture"), str) and "model_type" not in config


def _list_files(folder: Path) -> str:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        return f"but {error.strerror}"
    return f"found {', '.join(names[:5]) or 'no files'}" + (f" and {len(names) - 5} more" if len(names) > 5 else "")
