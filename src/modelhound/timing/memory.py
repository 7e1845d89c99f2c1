"""The host's memory: what this process holds, the most it held, and how much it may.

In:  nothing, or a number of bytes
Out: bytes; a limit that turns running out of memory into an error of the one call that asked for too much
Nothing here knows what the memory is for. Linux tells and limits all of this; elsewhere less is known, and nothing is limited.
"""

import contextlib
import ctypes
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

__all__ = ["PeakMemory", "count_swapped_pages", "limited_memory", "usable_memory_bytes"]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # of the process's resident memory; see proc(5)
_USABLE = 0.85  # of what is free when a sweep begins: the rest is for everybody else


class PeakMemory:
    """The most this process held since this was made."""

    def __init__(self) -> None:
        _give_back()
        self._is_exact = False
        with contextlib.suppress(OSError):
            _CLEAR.write_text(_RESET_PEAK)
            self._is_exact = True
        self._before = psutil.Process().memory_info().rss

    @property
    def bytes_held(self) -> int:
        """At the peak."""
        return max(self._before, _status_bytes("VmHWM") or _peak_ever() if self._is_exact else _peak_ever())

    @property
    def bytes_added(self) -> int:
        """From the moment this was made to the peak."""
        return self.bytes_held - self._before


def usable_memory_bytes() -> int:
    """What a point may use on this host unless told otherwise."""
    return int(_USABLE * psutil.virtual_memory().available)


@contextlib.contextmanager
def limited_memory(num_bytes: int | None) -> Iterator[None]:
    """Let this process take at most so much more memory than it has; beyond that, asking for it is an error."""
    held = _status_bytes("VmData")
    if num_bytes is None or held is None:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = held + num_bytes
    try:
        resource.setrlimit(
            resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def count_swapped_pages() -> int:
    """Pages this process had to wait for because they lay on disk, since it began."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt


def _give_back() -> None:
    """Return what was freed to the system: memory that is only taken again would not show."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)


def _status_bytes(name: str) -> int | None:
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def _peak_ever() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB, macOS in bytes
