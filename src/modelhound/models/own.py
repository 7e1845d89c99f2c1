"""A user's own network: `py:module:function` or `py:path/to/file.py:function`.

In:  the name of a function without required arguments that makes the network
Out: a card, its tensors, or the network with the user's own preprocessing
Naming the function is the permission to run it. It gives back one of
    (module, preprocessing)   what module(batch) returns, flattened, are the features
    module                    the same, with its preprocessing in the attribute `preprocessing`, or timm's `pretrained_cfg`
    Network                   everything decided by the user (modelhound.models.Network), texts included
where a preprocessing is a modelhound.data.Preprocessing, a mapping with the keys of timm's data configuration (input_size alone
is enough: 224, or (3, 224, 224)), or any function from an RGB image to a tensor. A function that has a parameter `pretrained`
is called with False for --weights random.
"""

import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from modelhound.compat import import_timm
from modelhound.errors import HoundError, ModelError
from modelhound.models.source import BUILDING, ModelCard, Network, Weights
from modelhound.models.timm import classifier_of, pooled_features
from modelhound.settings import PLAIN, ModelSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from modelhound.data import InputForm, Modality

__all__ = ["OwnSource"]


class OwnSource:
    """Functions of the user, found on Python's path or in the working directory."""

    modalities: "frozenset[Modality]" = frozenset({"image", "text"})
    listed = False

    def find(self, pattern: str) -> Sequence[str]:
        place, _, function = pattern.rpartition(":")
        return [pattern] if function.isidentifier() and _where(place) is not None else []

    def suggest(self, name: str) -> Sequence[str]:
        return ()

    def describe(self, name: str) -> ModelCard:
        network = self.build(name, None) if _takes_pretrained(_function(name)) else _make(name)
        form = network.preprocessing
        return ModelCard(
            model=f"py:{name}",
            family=type(network.module).__name__.lower(),
            num_parameters=network.num_parameters,
            input_size=getattr(form, "input_size", None),
            max_tokens=getattr(form, "max_tokens", None),
        )

    def glance(self, name: str) -> Mapping[str, Any]:
        return {}

    def stamp(self, name: str, settings: ModelSettings = PLAIN) -> str:
        """The file the function is written in; what else it reads is not known."""
        file = _where(name.rpartition(":")[0])
        if file is None or not file.is_file():
            return ""
        status = file.stat()
        return f"{status.st_size} {status.st_mtime_ns}"

    def mould(self, name: str, settings: ModelSettings = PLAIN) -> str | None:
        return None  # nobody knows what the function does

    def read_weights(self, name: str) -> Weights:
        weights: Weights = _make(name).module.state_dict()
        return weights

    def build(self, name: str, weights: Weights | None, settings: ModelSettings = PLAIN) -> Network:
        if weights is None and not _takes_pretrained(_function(name)):
            raise ModelError(
                f"cannot build py:{name} with random weights: expected a function with a parameter named pretrained, "
                "add one or leave --weights random out"
            )
        network = _make(name, pretrained=False)
        if weights is not None:
            network.module.load_state_dict(dict(weights))
        network.module.eval()
        return network


def _where(place: str) -> Path | None:
    """The file that holds the function, if there is one; of a module in a package, the package is imported for it."""
    if place.endswith(".py"):
        return Path(place) if Path(place).is_file() else None
    with _working_directory_first():
        try:
            spec = importlib.util.find_spec(place)
        except (ImportError, ValueError, AttributeError):  # no such parent, an empty name, a parent that is no package
            return None
        except (Exception, SystemExit) as error:  # a user's own package may raise anything
            raise ModelError(
                f"cannot load py:{place}: {type(error).__name__}: {error}; expected a package that can be imported"
            ) from error
    return Path(spec.origin) if spec and spec.origin else None


@contextmanager
def _working_directory_first() -> "Iterator[None]":
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _function(name: str) -> Callable[..., Any]:
    place, _, function = name.rpartition(":")
    try:
        with _working_directory_first():
            module = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
        made: Callable[..., Any] = getattr(module, function)
    except HoundError:
        raise
    except (Exception, SystemExit) as error:  # a user's own code may raise anything, or be a script that ends
        raise ModelError(
            f"cannot load py:{name}: {type(error).__name__}: {error}; expected {function!r} in {place!r}"
        ) from error
    return made


_importing = threading.RLock()  # a search builds in threads, and one must not see what another has half run


class _Uncompiled(importlib.machinery.SourceFileLoader):
    """Reads the file itself: what Python compiled of it before passes for current if it was edited within the same second."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def _import_file(file: Path) -> ModuleType:
    # by place and content: others may have a file of this name, and this one may be edited while we run
    digest = hashlib.sha256(str(file.resolve()).encode("utf-8", "surrogatepass") + b"\0" + file.read_bytes())
    name = f"hound_user_{file.stem}_{digest.hexdigest()[:16]}"
    with _importing:
        if name not in sys.modules:
            spec = importlib.util.spec_from_file_location(name, file, loader=_Uncompiled(name, str(file)))
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module  # before it runs, so that what it defines can be pickled
            try:
                spec.loader.exec_module(module)
            except BaseException:
                del sys.modules[name]
                raise
        return sys.modules[name]


_seen: dict[str, tuple[Any, str]] = {}
"""Of each module that was asked for how it was found when it was loaded, and what its file held then."""


def _import_module(name: str) -> ModuleType:
    """Python loads a module once per process: where its file was edited since, other code would run than what lies there, and
    its results would be kept under the stamp of the latter."""
    with _importing:
        module = importlib.import_module(name)
        file = Path(getattr(module, "__file__", None) or "")
        content = hashlib.sha256(file.read_bytes() if file.is_file() else b"").hexdigest()
        found, before = _seen.setdefault(name, (module.__spec__, content))
        if found is not module.__spec__:  # it was loaded anew
            _seen[name] = module.__spec__, content
        elif before != content:
            raise ModelError(
                f"cannot use py:{name}: expected its file as it was when this process loaded it, but it was edited; start "
                f"anew, importlib.reload it, or name the file: py:{file}:FUNCTION"
            )
        return module


def _takes_pretrained(function: Callable[..., Any]) -> bool:
    try:
        return "pretrained" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable without a signature
        return False


def _make(name: str, *, pretrained: bool = True) -> Network:
    function = _function(name)
    try:
        with BUILDING:
            made = function(pretrained=pretrained) if _takes_pretrained(function) else function()
        return made if isinstance(made, Network) else _wrap(made)
    except HoundError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"cannot make py:{name}: {type(error).__name__}: {error}; see modelhound.models.own"
        ) from error


def _wrap(made: Any) -> Network:
    import torch

    module, form = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise ModelError(
            f"cannot use a {type(module).__name__}: expected an nn.Module, (nn.Module, preprocessing) or a Network"
        )
    if form is None:
        form = getattr(module, "preprocessing", None) or getattr(module, "pretrained_cfg", None)
    module.eval()
    like_timm = hasattr(module, "forward_head") and hasattr(module, "forward_features")
    return Network(
        module=module,
        extract=pooled_features(module) if like_timm else lambda images: module(images).flatten(1),
        preprocessing=_understand(form, module),
        classify=classifier_of(module) if like_timm else None,
    )


def _understand(form: Any, module: "torch.nn.Module") -> "InputForm":
    from modelhound.data import OwnTransform, Preprocessing, Tokenising

    if isinstance(form, Preprocessing | OwnTransform | Tokenising):
        return form
    if isinstance(form, Mapping):
        config = dict(form)
        size = config.get("input_size", 224)
        config["input_size"] = (3, size, size) if isinstance(size, int) else tuple(size)
        return Preprocessing.from_timm(import_timm().data.resolve_data_config(pretrained_cfg=config))
    if callable(form):
        from PIL import Image

        _, height, width = form(Image.new("RGB", (640, 480))).shape
        return OwnTransform(transform=form, input_size=(int(height), int(width)))
    raise ModelError(
        f"cannot prepare items for {type(module).__name__}: expected its preprocessing beside it or in its attribute "
        "`preprocessing`, such as {'input_size': 224}"
    )
