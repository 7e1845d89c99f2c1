"""Weights of many models, read and hashed ahead of use.

In:  models, in the order in which they will be asked for
Out: the tensors of each, and the digest of every one of them
Nothing here knows what becomes of the tensors.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from modelhound.meter import Lanes, count_cores
from modelhound.models import ModelRef, Weights, source_of
from modelhound.models.tensor_hashes import TensorHasher, hash_tensor
from modelhound.settings import ModelSettings

__all__ = ["Reading"]

_MOST_READERS, _MOST_HASHERS = 4, 6


class Reading:
    """Reads and hashes the weights of several models at a time.

    Few threads do, since opening a file of many tensors is mostly Python's work, as is building networks meanwhile; more hash,
    but not as many as there may be cores, since each of a file's tensors is another turn at Python's lock.
    """

    def __init__(self, settings: ModelSettings, lanes: Lanes) -> None:
        self._settings, self._lanes = settings, lanes
        self._readers = ThreadPoolExecutor(_MOST_READERS, thread_name_prefix="read weights")
        self._hashers = ThreadPoolExecutor(min(_MOST_HASHERS, count_cores()), thread_name_prefix="hash weights")
        self._hasher = TensorHasher()
        self._reading: dict[ModelRef, Future[Weights | None]] = {}
        self._hashing: dict[ModelRef, Future[Mapping[str, str]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._readers.shutdown(wait=True, cancel_futures=True)
        self._hashers.shutdown(wait=True, cancel_futures=True)

    def begin(self, models: Sequence[ModelRef]) -> None:
        """In the order in which they will be asked for."""
        for model in models:
            self._reading[model] = self._readers.submit(self._read, model)
            self._hashing[model] = self._hashers.submit(self._hash, model)

    def weights(self, model: ModelRef) -> Weights | None:
        """Its tensors; None where they are to be random."""
        return self._reading[model].result()

    def digests(self, model: ModelRef) -> Mapping[str, str]:
        """Of its tensors by name."""
        return self._hashing[model].result()

    def end(self, model: ModelRef) -> None:
        """Nobody will ask for this one again."""
        del self._reading[model], self._hashing[model]

    def _read(self, model: ModelRef) -> Weights | None:
        return None if self._settings.weights == "random" else source_of(model).read_weights(model.name)

    def _hash(self, model: ModelRef) -> Mapping[str, str]:
        weights = self._reading[model].result()
        if weights is None:
            return {}
        with self._lanes.span("reading", "read weights", str(model)):
            digests = self._hasher.hash_files(getattr(weights, "paths", ()))
            return digests or {name: hash_tensor(tensor) for name, tensor in weights.items()}
