"""The clock: for differences, and for people."""

import datetime
import time

__all__ = ["seconds_now", "utc_now"]


def seconds_now() -> float:
    """A monotonic clock, for differences."""
    return time.perf_counter()


def utc_now() -> str:
    """The date and time, for people."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
