"""The memory of this process: what it holds, and the most it held since somebody began to look.

In:  nothing
Out: bytes
Nothing here knows what the memory is for. Linux tells all of this; elsewhere the peak is that since the process began.
"""

import contextlib
import ctypes
import resource
import sys
from pathlib import Path

import psutil

__all__ = ["PeakMemory", "peak_bytes", "process_bytes", "reset_peak"]

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_RESET_PEAK = "5"  # of the process's resident memory; see proc(5)


class PeakMemory:
    """The most this process held since this was made."""

    def __init__(self) -> None:
        _give_back()
        reset_peak()
        self._before = psutil.Process().memory_info().rss

    @property
    def bytes_held(self) -> int:
        """At the peak."""
        return max(self._before, peak_bytes())

    @property
    def bytes_added(self) -> int:
        """From the moment this was made to the peak."""
        return self.bytes_held - self._before


def reset_peak() -> None:
    """Count the most that is held anew from here on, where the system can."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text(_RESET_PEAK)


def peak_bytes() -> int:
    """The most this process held since the peak was reset, or since it began."""
    told = process_bytes("VmHWM")
    if told is not None:
        return told
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # Linux counts in KiB, macOS in bytes


def process_bytes(name: str) -> int | None:
    """What Linux tells of this process under that name, such as VmHWM."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return None


def _give_back() -> None:
    """Return what was freed to the system: memory that is only taken again would not show."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
    if trim is not None:
        trim(0)
