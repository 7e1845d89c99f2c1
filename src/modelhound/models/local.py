"""Models on disk.

In:  a path: a folder in the layout of the hub (config.json, weights, tokenizer), or one file of weights
Out: a card, the tensors, or the network
Nothing here reaches a network. A file of weights does not say what network it belongs to, so --arch does: that source
builds it and the file's tensors go in.
"""

import errno
import glob
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelhound.errors import ModelError
from modelhound.models.checkpoints import WEIGHT_SUFFIXES, choose_weights, count_tensors, read_tensors
from modelhound.models.layout import Layout, build_timm_network, network_files
from modelhound.models.source import ModelCard, ModelSource, Network, Weights, is_glob
from modelhound.settings import PLAIN, ModelSettings

if TYPE_CHECKING:
    from modelhound.data import Modality

__all__ = ["LocalSource"]

_MOST_SUGGESTIONS = 1000


class LocalSource:
    """Folders and files below the working directory, the home directory or the root."""

    modalities: "frozenset[Modality]" = frozenset({"image", "text"})
    listed = False

    def __init__(self, others: Mapping[str, ModelSource]) -> None:
        self._others = others  # by prefix; --arch names one of theirs

    def find(self, pattern: str) -> Sequence[str]:
        if not pattern.strip():
            return ()
        if _is_there(_path(pattern)):  # whatever it looks like: a name may hold brackets
            return (pattern,)
        if not is_glob(pattern):
            return ()
        found = sorted(glob.glob(str(_path(pattern))))  # noqa: PTH207  # pathlib's own takes no absolute pattern
        return tuple(name for name in found if _looks_like_a_model(Path(name)))

    def suggest(self, name: str) -> Sequence[str]:
        folder = _path(name).parent
        try:
            beside = sorted(path for path in folder.iterdir() if _looks_like_a_model(path))
        except (OSError, ValueError):  # no such folder, or no name that a folder could have
            return ()
        written = Path(name).parent
        return tuple(str(written / path.name) for path in beside[:_MOST_SUGGESTIONS])

    def describe(self, name: str) -> ModelCard:
        path = _path(name)
        if path.is_dir():
            return Layout(model=f"file:{name}", folder=path).describe()
        # what network the tensors belong to is said when it is built
        return ModelCard(model=f"file:{name}", family="unknown", num_parameters=count_tensors(f"file:{name}", path))

    def glance(self, name: str) -> Mapping[str, Any]:
        return {}

    def stamp(self, name: str, settings: ModelSettings = PLAIN) -> str:
        path = _path(name)
        digest = hashlib.sha256()
        try:
            for file in _files_of(path) if path.is_dir() else [path]:
                state = file.stat()
                digest.update(f"{file.name} {state.st_size} {state.st_mtime_ns}\n".encode())
        except OSError as error:
            raise _unreadable(name, error) from error
        prefix, _, network = (settings.arch or "").partition(":")
        if prefix == "py" and not path.is_dir():  # the same tensors in other code give other features
            digest.update(self._others[prefix].stamp(network).encode())
        return digest.hexdigest()

    def mould(self, name: str, settings: ModelSettings = PLAIN) -> str | None:
        path = _path(name)
        if path.is_dir():
            return Layout(model=f"file:{name}", folder=path).mould(settings)
        prefix, _, network = (settings.arch or "").partition(":")
        if prefix != "timm" or not network:
            return None  # only there a classifier is made to fit the file, so that files need not be alike in it
        try:
            return f"{settings.arch} {self._others[prefix].mould(network, settings)}"
        except RuntimeError:  # timm has no such network, as building will say
            return None

    def read_weights(self, name: str) -> Weights:
        path, model = _path(name), f"file:{name}"
        if not path.is_dir():
            return read_tensors(model, path)
        try:
            names = [file.name for file in path.iterdir()]
        except OSError as error:
            raise _unreadable(name, error) from error
        return read_tensors(model, path / choose_weights(model, names))

    def build(self, name: str, weights: Weights | None, settings: ModelSettings = PLAIN) -> Network:
        path, model = _path(name), f"file:{name}"
        if path.is_dir():
            named = {each.removeprefix("file:") for each in settings.allow_code}
            allowed = not named.isdisjoint((name, str(path)))
            return Layout(model=model, folder=path).build(weights, settings, allow_code=allowed)
        if not path.exists():
            raise _unreadable(name, FileNotFoundError(errno.ENOENT, "no such file or folder"))
        prefix, _, network = (settings.arch or "").partition(":")
        able = [each for each in self._others if each != "file"]
        if prefix not in able or not network:
            raise ModelError(
                f"cannot build {model}: expected to be told what network its tensors belong to, found --arch "
                f"{settings.arch!r}; add --arch timm:resnet18 or another of {', '.join(f'{each}:NAME' for each in able)}"
            )
        if prefix == "timm":
            return build_timm_network(model, network, weights)
        try:
            return self._others[prefix].build(network, weights, settings)
        except ModelError as error:
            raise ModelError(f"cannot build {model} as {settings.arch}: {error}") from error


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except (RuntimeError, ValueError):  # ~somebody who has no home, or no name that anybody could have
        return Path(name)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long, say
        return False


def _looks_like_a_model(path: Path) -> bool:
    return (path / "config.json").is_file() if path.is_dir() else path.suffix in WEIGHT_SUFFIXES


def _files_of(folder: Path) -> list[Path]:
    """Whatever decides the features: weights, configuration, tokenizer, and code if it has any."""
    named = [folder / name for name in network_files() if (folder / name).is_file()]
    others = [path for path in folder.iterdir() if path.suffix in (*WEIGHT_SUFFIXES, ".py")]
    return sorted({*named, *others})


def _unreadable(name: str, error: OSError) -> ModelError:
    return ModelError(f"cannot read file:{name}: {error.strerror or error}; check the path and its permissions")
