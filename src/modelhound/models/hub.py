"""Models of the Hugging Face hub.

In:  ORG/NAME, or a bare NAME, with or without @REVISION (a branch, a tag or a commit); globs over names
Out: a card, the trained tensors, or the network
Nothing here knows what a network is made of: the files that are needed, and no others, are fetched into the cache, and
from there on it is a folder in the layout of the hub. Code is among them only if the user named the model.
"""

import fnmatch
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from huggingface_hub.errors import GatedRepoError

from modelhound import __version__
from modelhound.errors import ModelError
from modelhound.meter import installed_version
from modelhound.models.checkpoints import choose_weights, read_tensors, shard_names
from modelhound.models.hub_client import HubClient, Snapshot
from modelhound.models.layout import CARD_FILES, Layout, network_files
from modelhound.models.source import ModelCard, Network, Weights, is_glob
from modelhound.settings import PLAIN, ModelSettings
from modelhound.store import Memo

if TYPE_CHECKING:
    from modelhound.data import Modality

__all__ = ["HubSource"]


class HubSource:
    """The models of the hub that the client is set up for, or of another one."""

    modalities: "frozenset[Modality]" = frozenset({"image", "text"})
    listed = False

    def __init__(self, *, endpoint: str | None = None, cache: Path | None = None) -> None:
        self._hub = HubClient(endpoint=endpoint, cache=cache)
        self._in_use = False
        self._memo: Memo | None = None  # opened when first needed: where it lies is read from the environment

    def find(self, pattern: str) -> Sequence[str]:
        if self._in_use:  # names are asked for when a search begins, then models are used: this is another search
            self._in_use = False
            self._hub.forget()
        repository, revision = _split(pattern)
        if not is_glob(repository):
            return (pattern,) if self._hub.exists(repository, revision) else ()
        author, _, rest = repository.rpartition("/")
        literal = max(re.split(r"\[[^]]*\]|[*?]", rest), key=len)
        names = self._hub.list_names(author=None if is_glob(author) else author or None, containing=literal or None)
        ending = f"@{revision}" if revision else ""
        return tuple(f"{name}{ending}" for name in names if fnmatch.fnmatchcase(name, repository))

    def suggest(self, name: str) -> Sequence[str]:
        return self._hub.cached_names()

    def describe(self, name: str) -> ModelCard:
        snapshot = self._look_up(name)
        if self._memo is None:
            self._memo = Memo(f"hub-{installed_version('transformers')}-{installed_version('timm')}-{__version__}")
        # What the hub said of a model is worth more than what its files say, and must not be kept from the former.
        key = f"{name} {snapshot.commit} {'files' if snapshot.info is None else 'hub'}"
        try:
            fact = self._memo.recall(key, lambda: msgspec.to_builtins(self._describe(name, snapshot)))
        except ModelError as error:
            if not isinstance(error.__cause__, GatedRepoError):
                raise
            return _describe_from_outside(name, snapshot)  # may be read tomorrow: not remembered
        return msgspec.convert(fact, ModelCard)

    def glance(self, name: str) -> Mapping[str, Any]:
        return {}

    def stamp(self, name: str, settings: ModelSettings = PLAIN) -> str:
        return self._look_up(name).commit

    def mould(self, name: str, settings: ModelSettings = PLAIN) -> str | None:
        snapshot = self._look_up(name)
        return self._layout(name, snapshot, network_files()).mould(settings)

    def read_weights(self, name: str) -> Weights:
        snapshot = self._look_up(name)
        chosen = choose_weights(f"hf:{name}", snapshot.files)
        path = self._hub.fetch(snapshot, [chosen]) / chosen
        if chosen.endswith(".index.json"):
            shards = shard_names(f"hf:{name}", path)
            missing = [shard for shard in shards if shard not in snapshot.files]
            if missing:
                raise ModelError(
                    f"cannot read weights of hf:{name}: expected all {len(shards)} files that {chosen!r} names, "
                    f"{missing[0]!r} is not there; fetch it with the hub at hand, or choose another model"
                )
            self._hub.fetch(snapshot, shards)
        return read_tensors(f"hf:{name}", path)

    def build(self, name: str, weights: Weights | None, settings: ModelSettings = PLAIN) -> Network:
        snapshot = self._look_up(name)
        allowed = not {name, snapshot.repository}.isdisjoint(each.removeprefix("hf:") for each in settings.allow_code)
        code = [file for file in snapshot.files if allowed and file.endswith(".py")]
        return self._layout(name, snapshot, [*network_files(), *code]).build(weights, settings, allow_code=allowed)

    def _look_up(self, name: str) -> Snapshot:
        self._in_use = True
        return self._hub.look_up(*_split(name))

    def _layout(self, name: str, snapshot: Snapshot, files: Sequence[str]) -> Layout:
        if "config.json" not in snapshot.files:
            shown = ", ".join(sorted(snapshot.files)[:5]) or "no files"
            raise ModelError(
                f"cannot use hf:{name}: expected a config.json of transformers or timm, found {shown}; choose another model"
            )
        return Layout(model=f"hf:{name}", folder=self._hub.fetch(snapshot, files))

    def _describe(self, name: str, snapshot: Snapshot) -> ModelCard:
        """From its files, and from what the hub says of it. One that cannot be run can still be listed."""
        if "config.json" not in snapshot.files:
            return _describe_from_outside(name, snapshot)
        layout = self._layout(name, snapshot, CARD_FILES)
        try:
            return msgspec.structs.replace(layout.describe(), **_stated(snapshot.info))
        except ModelError:
            return _describe_from_outside(name, snapshot)


def _split(name: str) -> tuple[str, str | None]:
    repository, _, revision = name.partition("@")
    return repository, revision or None


def _describe_from_outside(name: str, snapshot: Snapshot) -> ModelCard:
    """What the hub alone says; of parameters, it counts those of heads too."""
    total = getattr(getattr(snapshot.info, "safetensors", None), "total", None)
    family = (getattr(snapshot.info, "config", None) or {}).get("model_type") or "unknown"
    card = ModelCard(model=f"hf:{name}", family=family, num_parameters=int(total or 0))
    return msgspec.structs.replace(card, **_stated(snapshot.info))


def _stated(info: Any) -> dict[str, Any]:
    """What the hub says of a model that no file does."""
    if info is None:
        return {}
    data = info.card_data.to_dict() if getattr(info, "card_data", None) is not None else {}
    tagged = {tag.partition(":")[0]: tag.partition(":")[2] for tag in reversed(getattr(info, "tags", None) or [])}
    stated = {
        "licence": _join(data.get("license") or tagged.get("license")),
        "trained_on": _join(data.get("datasets") or tagged.get("dataset")),
        "downloads": getattr(info, "downloads", None),
    }
    return {name: value for name, value in stated.items() if value is not None}


def _join(value: Any) -> str | None:
    return ", ".join(str(each) for each in value[:3]) if isinstance(value, list) and value else str(value or "") or None
