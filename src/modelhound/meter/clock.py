"""The clock: for differences, and for people.

In:  nothing
Out: seconds of which only differences mean something; the date and time as text
Nothing here knows what is timed. Whatever in `meter` goes by the host's time asks here.
"""

import datetime
import time

__all__ = ["cpu_seconds_now", "seconds_now", "utc_now"]


def seconds_now() -> float:
    """A monotonic clock, for differences."""
    return time.perf_counter()


def cpu_seconds_now() -> float:
    """Seconds that all threads of this process have kept cores busy, for differences."""
    return time.process_time()


def utc_now() -> str:
    """The date and time, for people."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
