"""The folder of a run, from asking to answering.

In:  what was asked; records; the answer
Out: all of it again, for a resumed run, a report or a list
Nothing here knows what a record means. One process at a time may write a folder, any number may read it.
"""

import contextlib
import errno
import hashlib
import math
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import filelock
import msgspec

from modelhound.errors import RequestError, RunBusyError, StoreError
from modelhound.meter.clock import seconds_now
from modelhound.records import Failure, LatencyFailed, Record
from modelhound.store.files import explain_write_errors, flush_to_disk, write_whole
from modelhound.store.lines import (
    NOT_WHAT_WE_WROTE,
    cut_half_written_line,
    encode_numbers,
    make_line,
    read_counted,
    read_records,
)

__all__ = [
    "DEFAULT_ROOT",
    "Run",
    "RunFolder",
    "RunSummary",
    "default_run_path",
    "list_runs",
    "open_run",
    "read_run",
    "reserve_run",
    "set_aside",
]

DEFAULT_ROOT = Path("runs")
_MOST_OF_NAME = 200  # characters of what a run is about: verb and digest must fit into the 255 of a name

_ASKED, _RECORDS, _ANSWER, _LOCK = "asked.json", "records.jsonl", "answer.json", "lock"

_FLUSH_SECONDS = 1.0
_FAILED = Failure | LatencyFailed  # of any other record with a model, something of that model was measured

OneRecord = TypeVar("OneRecord", bound=Record)


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    verb: str
    at: str
    settings: dict[str, Any]
    identity: dict[str, Any]


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    headline: str
    answer: msgspec.Raw


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `hound runs`."""

    run: str
    verb: str
    at: str
    data: str
    num_models: int
    num_failures: int
    headline: str
    """What the answer is, in a few words; empty while there is none."""
    finished: bool


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a run folder holds, to look at."""

    path: Path
    verb: str
    at: str
    settings: dict[str, Any]
    records: tuple[Record, ...]
    headline: str
    answer: msgspec.Raw | None
    """As it was written; None while the run is unfinished. Decode it into what the verb wrote."""
    num_unread: int = 0
    """Records that are damaged or were written by another version."""

    def of(self, kind: type[OneRecord]) -> list[OneRecord]:
        """The records of one kind, oldest first."""
        return [record for record in self.records if isinstance(record, kind)]


class RunFolder:
    """An open run folder that this process alone may write. Made by `open_run`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing, self._flushing = threading.Lock(), threading.Lock()
        self._flushed_at = -math.inf

    def append(self, record: Record) -> None:
        """Add one record; once this returns, it survives whatever happens to the process. From several threads if need be.

        It goes to the disk, where a power cut does not matter either, at least once a second while records come.
        """
        line = make_line(record)
        target = self.path / _RECORDS
        with self._writing, explain_write_errors(target), target.open("ab", buffering=0) as file:
            start = file.seek(0, os.SEEK_END)
            try:
                if file.write(line) != len(line):
                    raise OSError(errno.ENOSPC, "only part of a line could be written")  # so ends a disk that fills up
            except OSError:
                file.truncate(start)  # half a line must not swallow the next one
                raise
        # A disk that is busy with other files may take long over it: whoever else has a record does not wait for that.
        if self._flushing.acquire(blocking=False):
            try:
                if seconds_now() - self._flushed_at >= _FLUSH_SECONDS:
                    self.flush()
                    self._flushed_at = seconds_now()
            finally:
                self._flushing.release()

    def flush(self) -> None:
        """Bring all records to the disk."""
        target = self.path / _RECORDS
        with explain_write_errors(target):
            if target.exists():
                flush_to_disk(target)

    def read(self, kind: type[OneRecord]) -> list[OneRecord]:
        """All intact records of one kind, oldest first."""
        return [record for record in read_records(self.path / _RECORDS) if isinstance(record, kind)]

    def write_answer(self, answer: msgspec.Struct, *, headline: str) -> None:
        """What follows from the records; the headline says it in a few words."""
        self.flush()
        document = _Answer(headline=headline, answer=msgspec.Raw(encode_numbers(answer)))
        write_whole(self.path / _ANSWER, msgspec.json.format(msgspec.json.encode(document), indent=2))


@contextlib.contextmanager
def open_run(
    path: Path, *, verb: str, at: str, settings: Mapping[str, Any], identity: Mapping[str, Any]
) -> Iterator[RunFolder]:
    """Lock the folder, mend what a kill left half-written, and make sure that old and new results belong together.

    `identity` holds whatever decides the numbers: a folder begun with another identity is refused, since its results
    cannot be ranked beside new ones.
    """
    lock = _lock(path)
    try:
        _sweep(path)
        asked = _Asked(verb=verb, at=at, settings=dict(settings), identity=dict(identity))
        _agree_with_earlier(path, asked)
        cut_half_written_line(path / _RECORDS)
        with explain_write_errors(path):
            (path / _ANSWER).unlink(missing_ok=True)  # from now on until the end, the run is unfinished
        yield RunFolder(path)
    finally:
        lock.release()


def reserve_run(path: Path) -> None:
    """Make it a run folder before others put files there: `open_run` refuses what holds files and is none, and so does this."""
    _lock(path).release()


def set_aside(path: Path) -> None:
    """Let the folder begin anew with another identity; what it holds stays beside, under another name."""
    with contextlib.ExitStack() as stack:
        stack.callback(_lock(path).release)
        with explain_write_errors(path):
            taken = [re.fullmatch(r".*\.before-(\d+)", each.name) for each in path.glob("*.before-*")]
            number = 1 + max((int(found[1]) for found in taken if found is not None), default=-1)
            for name in (_RECORDS, _ASKED):
                if (path / name).exists():
                    (path / name).rename(path / f"{name}.before-{number}")


def read_run(path: Path) -> Run:
    """Everything in a run folder, whether finished or not; it may be in use by another process."""
    asked = _read_asked(path)
    if asked is None:
        raise RequestError(f"cannot read run {str(path)!r}: expected a run folder, see `hound runs`")
    written = _read_answer(path)
    records, num_unread = read_counted(path / _RECORDS)
    return Run(
        path=path,
        verb=asked.verb,
        at=asked.at,
        settings=asked.settings,
        records=records,
        headline=written.headline if written else "",
        answer=written.answer if written else None,
        num_unread=num_unread,
    )


def default_run_path(verb: str, data: str, identity: Mapping[str, Any]) -> Path:
    """The folder that the same request always gets, so that starting it again resumes it."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(data).name or data).strip("-.") or "data"
    digest = hashlib.sha256(msgspec.json.encode(dict(identity), order="sorted")).hexdigest()
    return DEFAULT_ROOT / f"{verb}-{name[:_MOST_OF_NAME]}-{digest[:8]}"


def list_runs(root: Path = DEFAULT_ROOT) -> list[RunSummary]:
    """Every run folder directly below `root`, newest first."""
    if not root.is_dir():
        return []
    found = [_summarise(path.parent) for path in root.glob(f"*/{_ASKED}")]
    return sorted(found, key=lambda run: run.at, reverse=True)


def _lock(path: Path) -> filelock.BaseFileLock:
    """Make the folder if need be and take its lock; whatever else lies in it is left alone."""
    try:
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        if not is_new and not (path / _LOCK).exists() and any(path.iterdir()):
            raise RequestError(
                f"cannot use run folder {str(path)!r}: expected a new, empty or run folder, it holds other files, "
                "choose another --run"
            )
        for name in (_LOCK, _ASKED, _RECORDS, _ANSWER):
            if (path / name).is_symlink():  # a folder from a stranger must not make us write elsewhere
                raise RequestError(
                    f"cannot use run folder {str(path)!r}: expected files of its own in it, but {name} is a link to somewhere "
                    "else; choose another --run"
                )
        lock = filelock.FileLock(path / _LOCK)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise RunBusyError(
            f"cannot write run folder {str(path)!r}: another process is writing it, "
            "wait for it to end or choose another --run"
        ) from None
    except OSError as error:
        raise RequestError(
            f"cannot use run folder {str(path)!r}: expected a folder that can be made and written, but "
            f"{error.strerror or error}; choose another --run"
        ) from None
    return lock


def _sweep(path: Path) -> None:
    """Remove what a kill in the middle of `write_whole` left behind. Only the holder of the lock may."""
    for name in (_ASKED, _ANSWER):
        for unfinished in path.glob(f".{name}.*"):
            with explain_write_errors(unfinished):
                unfinished.unlink(missing_ok=True)


def _agree_with_earlier(path: Path, asked: _Asked) -> None:
    """Write down what is asked, unless an earlier start asked for something that does not go with it."""
    earlier = _read_asked(path)
    if earlier is None and (path / _RECORDS).exists():
        raise RequestError(
            f"cannot resume run folder {str(path)!r}: its {_ASKED} is gone, so nobody knows what its records belong to; "
            "delete the folder or choose another --run"
        )
    if earlier is not None:
        now = msgspec.to_builtins(asked.identity)
        differing = [key for key in {**earlier.identity, **now} if earlier.identity.get(key) != now.get(key)]
        if earlier.verb != asked.verb or differing:
            changes = ", ".join(_describe_change(key, earlier.identity.get(key), now.get(key)) for key in differing)
            raise RequestError(
                f"cannot resume run folder {str(path)!r}: expected the request it was begun with, "
                f"but {changes or f'it holds a {earlier.verb} run'}; choose another --run"
            )
    write_whole(path / _ASKED, msgspec.json.format(msgspec.json.encode(asked), indent=2))


def _describe_change(key: str, before: object, now: object) -> str:
    if key.endswith("fingerprint"):
        return f"the {key.removesuffix('_fingerprint')} changed since"  # two digests tell a reader nothing
    return f"{key} was {before!r}, now {now!r}"


def _read_asked(path: Path) -> _Asked | None:
    try:
        return msgspec.json.decode((path / _ASKED).read_bytes(), type=_Asked)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, *NOT_WHAT_WE_WROTE) as error:
        raise StoreError(
            f"cannot read {str(path / _ASKED)!r}: {error}; delete the folder or choose another --run"
        ) from None


def _read_answer(path: Path) -> _Answer | None:
    with contextlib.suppress(OSError, *NOT_WHAT_WE_WROTE):
        content = (path / _ANSWER).read_bytes()
        content.decode()  # what a verb has answered is only taken apart by those who know it, and must be text even so
        return msgspec.json.decode(content, type=_Answer)
    return None


def _summarise(path: Path) -> RunSummary:
    try:
        run = read_run(path)
    except (StoreError, RequestError):
        return _damaged(path)
    failed = {each.model for each in run.records if isinstance(each, _FAILED)}
    measured = {str(each.model) for each in run.records if hasattr(each, "model") and not isinstance(each, _FAILED)}
    return RunSummary(
        run=str(path),
        verb=run.verb,
        at=run.at,
        data=str(run.settings.get("data", "")),
        num_models=len(measured),
        num_failures=len(failed - measured),
        headline=run.headline,
        finished=run.answer is not None,
    )


def _damaged(path: Path) -> RunSummary:
    return RunSummary(
        run=str(path), verb="damaged", at="", data="", num_models=0, num_failures=0, headline="", finished=False
    )
