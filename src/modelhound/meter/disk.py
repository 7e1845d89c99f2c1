"""Bytes that came from a disk.

In:  nothing
Out: how many bytes this process and those it has ended had to fetch from storage, so that a cold page cache shows
Nothing here knows who read them. Linux tells; elsewhere nobody does.
"""

from pathlib import Path

__all__ = ["disk_bytes_read"]

_COUNTERS, _FIELD = Path("/proc/self/io"), "read_bytes:"


def disk_bytes_read() -> int | None:
    """So far; None where the system does not tell. What is in the page cache is not counted; children count when they end."""
    try:
        lines = _COUNTERS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith(_FIELD)), None)
