"""How much of the host's memory a point may take.

In:  nothing, or a number of bytes
Out: bytes; a limit that turns running out of memory into an error of the one call that asked for too much
Nothing here knows what the memory is for. Linux limits this; elsewhere nothing is limited.
"""

import contextlib
import resource
from collections.abc import Iterator

from modelhound.meter import available_memory, process_bytes

__all__ = ["count_swapped_pages", "limited_memory", "usable_memory_bytes"]

_USABLE = 0.85  # of what is free when a sweep begins: the rest is for everybody else


def usable_memory_bytes() -> int:
    """What a point may use on this host unless told otherwise."""
    return int(_USABLE * available_memory())


@contextlib.contextmanager
def limited_memory(num_bytes: int | None) -> Iterator[None]:
    """Let this process take at most so much more memory than it has; beyond that, asking for it is an error."""
    held = process_bytes("VmData")
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
