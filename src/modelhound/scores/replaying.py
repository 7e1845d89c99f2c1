"""Have a CUDA device repeat a piece of work without asking Python for every step of it.

In:  a function of one tensor that does the same operations at every call, with nothing in it that waits for the device
Out: a function of the same outcome, which the next call writes over. The first call does the work as it is, the second records
     it as a CUDA graph, and from then on one launch repeats all of it. Where nothing can be recorded (a CPU, the default
     stream), the function itself
Nothing here knows what is done. A scorer's step is some thirty operations, each shorter than its launch, and every launch
takes Python's lock, which other threads want as well: launches, not arithmetic, are what such a step costs. While a thread
records, no other may wait for the whole device, only for streams.
"""

import threading
from collections.abc import Callable

import torch

__all__ = ["replayed"]

_Function = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

# The memory of graphs comes from a pool that lives as long as one of them does, and that nothing else draws on. So each
# thread has one pool and keeps its last graph: the next one takes over its memory, which would else pile up graph by graph.
_own = threading.local()


def replayed(function: _Function, place: torch.Tensor) -> _Function:
    """`function`, repeated by the device where that can be; `place` is like the tensors that it will be called with."""
    device = place.device
    if device.type != "cuda" or torch.cuda.current_stream(device) == torch.cuda.default_stream(device):
        return function
    return _Replayed(function, place)


class _Replayed:
    def __init__(self, function: _Function, place: torch.Tensor) -> None:
        self._function = function
        self._place = torch.empty_like(place)
        self._num_calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._found: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self._num_calls += 1
        if self._num_calls == 2:  # what is done for the first time prepares libraries, which cannot be recorded
            self._record()
        if self._graph is None or self._found is None:
            return self._function(place)
        self._place.copy_(place)
        self._graph.replay()
        return self._found

    def _record(self) -> None:
        """Where that fails, because some other library waited for the device meanwhile, every call does the work as it is."""
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads go on meanwhile, and what they do is no business of this recording
            graph.capture_begin(pool=getattr(_own, "pool", None), capture_error_mode="thread_local")
            try:
                found = self._function(self._place)
            finally:
                graph.capture_end()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:
            return
        self._graph, self._found = graph, found
        _own.pool, _own.graph = graph.pool(), graph
