"""Look at every chosen item once, so that a broken file is known before any model has run.

In:  a Reader and how many items it has
Out: for each item its stamp, or the reason why it cannot be read
Nothing here decides how many broken items are too many. Files that an earlier run has looked at are not opened again
(`known_files`).
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from modelhound.data.known_files import FileTrace, KnownFiles
from modelhound.data.source import Reader, UnreadableItemError
from modelhound.data.sources.folder import FileReader
from modelhound.meter import count_cores, seconds_now
from modelhound.records import Progress, Watch
from modelhound.store import Memo

__all__ = ["Finding", "check_items", "remember_unreadable"]

_MEMO = "unreadable-items"
_TASK = "checking items"
_MAX_THREADS = 8  # enough for a disk that must seek; more stand in line for Python's lock
_FEW, _SLOW_SECONDS = 64, 2e-5  # files whose traces tell how fast the system is; a disk here takes 3e-6
_MAX_CHUNK = 64  # so that Ctrl-C is answered after so many images per thread at the latest


@dataclass(frozen=True, slots=True)
class Finding:
    """What reading one item showed: `problem` is None for a good one."""

    stamp: str
    digest: str
    problem: str | None


def check_items(reader: Reader, num_items: int, watch: Watch) -> list[Finding]:
    """One Finding per item, in order."""
    if not isinstance(reader, FileReader):
        return _look_at(reader, range(num_items), watch)
    traces = _trace(reader, num_items)
    files = KnownFiles()
    digests = files.recall(traces)
    unreadable = Memo(_MEMO)
    known = {
        position: Finding(trace.stamp, digest, unreadable.look_up(digest))
        for position, (trace, digest) in enumerate(zip(traces, digests, strict=True))
        if trace is not None and digest is not None
    }
    others = [position for position in range(num_items) if position not in known]
    looked = dict(zip(others, _look_at(reader, others, watch), strict=True))
    _remember(files, traces, looked)
    return [known.get(position) or looked[position] for position in range(num_items)]


def _trace(reader: FileReader, num_items: int) -> list[FileTrace | None]:
    """What the system tells of each file; by several threads where it takes its time to answer, as over a network."""
    start = seconds_now()
    traces = reader.traces(range(min(_FEW, num_items)))
    if (seconds_now() - start) / max(1, len(traces)) < _SLOW_SECONDS:
        return traces + reader.traces(range(len(traces), num_items))
    chunks = [range(first, min(first + _FEW, num_items)) for first in range(len(traces), num_items, _FEW)]
    with ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="trace") as pool:
        for some in pool.map(reader.traces, chunks):
            traces += some
    return traces


def _remember(files: KnownFiles, traces: Sequence[FileTrace | None], looked: Mapping[int, Finding]) -> None:
    """Files that hold an image and did not change while they were looked at."""
    pairs = [(traces[position], finding) for position, finding in looked.items()]
    sound = [
        (trace, finding.digest)
        for trace, finding in pairs
        if trace is not None and finding.problem is None and finding.stamp == trace.stamp
    ]
    files.note([trace for trace, _ in sound], [digest for _, digest in sound])
    files.close()


def _look_at(reader: Reader, positions: Sequence[int], watch: Watch) -> list[Finding]:
    """Threads suffice: decoders let go of Python's lock while they work."""
    num_items = len(positions)
    if not num_items:
        return []
    chunk = max(1, min(_MAX_CHUNK, num_items // 100))
    chunks = [positions[start : start + chunk] for start in range(0, num_items, chunk)]
    findings: list[Finding] = []
    unreadable = Memo(_MEMO)
    tell = _every_percent(watch, num_items)
    pool = ThreadPoolExecutor(min(_MAX_THREADS, count_cores() + 1), thread_name_prefix="check")
    try:
        for some in pool.map(lambda positions: _check_chunk(reader, positions, unreadable), chunks):
            findings += some
            tell(len(findings))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # does nothing unless interrupted: then the queue is dropped
    return findings


def _check_chunk(reader: Reader, positions: Sequence[int], unreadable: Memo) -> list[Finding]:
    return [_check(reader, position, unreadable) for position in positions]


def _check(reader: Reader, position: int, unreadable: Memo) -> Finding:
    try:
        # stamped before reading: a change in between then looks like one afterwards
        stamp, digest = (
            reader.look(position)
            if isinstance(reader, FileReader)
            else (reader.stamp(position), reader.check(position))
        )
    except UnreadableItemError as error:
        return Finding("", "", str(error))
    return Finding(stamp, digest, unreadable.look_up(digest))


def remember_unreadable(digest: str, problem: str) -> None:
    """That an item which looked well could not be decoded, so that the next look leaves it out."""
    Memo(_MEMO).note(digest, problem)


def _every_percent(watch: Watch, total: int) -> Callable[[int], None]:
    told = 0

    def tell(done: int) -> None:
        nonlocal told
        if done == total or (done - told) * 100 >= total:
            told = done
            watch(Progress(task=_TASK, done=done, total=total))

    watch(Progress(task=_TASK, done=0, total=total))
    return tell
