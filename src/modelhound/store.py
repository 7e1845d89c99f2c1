"""A run folder: what was asked, append-only records, the answer. The only room that writes results.

In:  records, as they come
Out: the same records, after a kill, a full disk or a crash at any moment
Nothing here knows what a record means. It owns every file name:

    RUN/asked.json      what was asked and what must stay the same when the run is resumed
    RUN/records.jsonl   one line per record, each with a checksum; a damaged or half-written line is left out
    RUN/answer.json     the answer and its headline, written anew at the end of every start
    RUN/lock            held while a process writes; the system lets go of it when that process dies

    CACHE/NAME.jsonl    facts worth remembering between runs, such as parameter counts (a Memo)
"""

import contextlib
import errno
import glob
import hashlib
import math
import os
import re
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import filelock
import msgspec

from modelhound.errors import RequestError, RunBusyError, StoreError
from modelhound.meter.clock import seconds_now
from modelhound.records import AnyRecord, Failure, Record

__all__ = [
    "DEFAULT_ROOT",
    "Memo",
    "Run",
    "RunFolder",
    "RunSummary",
    "cache_folder",
    "default_run_path",
    "list_runs",
    "open_run",
    "read_run",
    "set_aside",
    "write_file",
    "write_folder",
]

DEFAULT_ROOT = Path("runs")

_ASKED, _RECORDS, _ANSWER, _LOCK = "asked.json", "records.jsonl", "answer.json", "lock"

_FLUSH_SECONDS = 1.0

# A damaged byte may also be no UTF-8, and a stranger's file nested deeper than the parser goes.
_NOT_WHAT_WE_WROTE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

OneRecord = TypeVar("OneRecord", bound=Record)


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    verb: str
    at: str
    settings: dict[str, Any]
    identity: dict[str, Any]


class _Line(msgspec.Struct, frozen=True, kw_only=True):
    crc: str
    record: msgspec.Raw


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
        body = msgspec.json.encode(record)
        line = msgspec.json.encode(_Line(crc=_checksum(body), record=msgspec.Raw(body))) + b"\n"
        target = self.path / _RECORDS
        with self._writing, _explain_write_errors(target), target.open("ab", buffering=0) as file:
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
        with _explain_write_errors(target):
            if target.exists():
                _flush_to_disk(target)

    def read(self, kind: type[OneRecord]) -> list[OneRecord]:
        """All intact records of one kind, oldest first."""
        return [record for record in _read_records(self.path / _RECORDS) if isinstance(record, kind)]

    def write_answer(self, answer: msgspec.Struct, *, headline: str) -> None:
        """What follows from the records; the headline says it in a few words."""
        self.flush()
        document = _Answer(headline=headline, answer=msgspec.Raw(msgspec.json.encode(answer)))
        _write_whole(self.path / _ANSWER, msgspec.json.format(msgspec.json.encode(document), indent=2))


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
        _cut_half_written_line(path / _RECORDS)
        with _explain_write_errors(path):
            (path / _ANSWER).unlink(missing_ok=True)  # from now on until the end, the run is unfinished
        yield RunFolder(path)
    finally:
        lock.release()


def set_aside(path: Path) -> None:
    """Let the folder begin anew with another identity; what it holds stays beside, under another name."""
    with contextlib.ExitStack() as stack:
        stack.callback(_lock(path).release)
        with _explain_write_errors(path):
            for name in (_RECORDS, _ASKED):
                if (path / name).exists():
                    number = sum(1 for _ in path.glob(f"{name}.before-*"))
                    (path / name).rename(path / f"{name}.before-{number}")


def read_run(path: Path) -> Run:
    """Everything in a run folder, whether finished or not; it may be in use by another process."""
    asked = _read_asked(path)
    if asked is None:
        raise RequestError(f"cannot read run {str(path)!r}: expected a run folder, see `hound runs`")
    written = _read_answer(path)
    return Run(
        path=path,
        verb=asked.verb,
        at=asked.at,
        settings=asked.settings,
        records=tuple(_read_records(path / _RECORDS)),
        headline=written.headline if written else "",
        answer=written.answer if written else None,
    )


def default_run_path(verb: str, data: str, identity: Mapping[str, Any]) -> Path:
    """The folder that the same request always gets, so that starting it again resumes it."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(data).name or data).strip("-.") or "data"
    digest = hashlib.sha256(msgspec.json.encode(dict(identity), order="sorted")).hexdigest()
    return DEFAULT_ROOT / f"{verb}-{name}-{digest[:8]}"


def write_file(path: Path, content: bytes) -> None:
    """A file of results beside the records: there as a whole or not at all."""
    with _explain_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    _write_whole(path, content)


def write_folder(path: Path, fill: Callable[[Path], None]) -> None:
    """A new folder of results, such as a checkpoint: there with all that `fill` puts into it, or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    with _explain_write_errors(path):
        for left in path.parent.glob(f".{glob.escape(path.name)}.*-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        try:
            unfinished.mkdir(parents=True)
            fill(unfinished)
            for file in unfinished.rglob("*"):
                if file.is_file():
                    _flush_to_disk(file)
            unfinished.rename(path)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise


def list_runs(root: Path = DEFAULT_ROOT) -> list[RunSummary]:
    """Every run folder directly below `root`, newest first."""
    if not root.is_dir():
        return []
    found = [_summarise(path.parent) for path in root.glob(f"*/{_ASKED}")]
    return sorted(found, key=lambda run: run.at, reverse=True)


class Memo:
    """A file of facts that are slow to find out and never change, one JSON line each. Losing it costs time only.

    Several processes may use it at once: a line is written in one go, and one that was cut off is passed over.
    """

    def __init__(self, name: str) -> None:
        self.path = cache_folder() / f"{name}.jsonl"
        self._facts: dict[str, Any] | None = None

    def recall(self, key: str, find_out: Callable[[], Any]) -> Any:
        """The fact under this key: remembered, or found out now and remembered. It must be plain, as JSON is."""
        if self.look_up(key) is None:
            self.note(key, find_out())
        return self.look_up(key)

    def look_up(self, key: str) -> Any:
        """The fact under this key; None where there is none."""
        if self._facts is None:
            self._facts = self._load()
        return self._facts.get(key)

    def note(self, key: str, fact: Any) -> None:
        """Remember a fact, in place of what was known under this key."""
        if self.look_up(key) != fact:
            assert self._facts is not None
            self._facts[key] = fact
            self._append(key, fact)

    def _load(self) -> dict[str, Any]:
        try:
            lines = self.path.read_bytes().splitlines()
        except OSError:
            return {}
        facts: dict[str, Any] = {}
        for line in lines:
            with contextlib.suppress(*_NOT_WHAT_WE_WROTE):
                facts.update(_decode_fact(line))
        return facts

    def _append(self, key: str, value: Any) -> None:
        """A disk that cannot be written to is not worth an error here."""
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as file:
                file.write(
                    b"\n" + msgspec.json.encode({key: value})
                )  # the break first: the last line may be half a line


_decode_fact = msgspec.json.Decoder(dict[str, Any]).decode


def cache_folder() -> Path:
    """Where modelhound remembers things between runs: $MODELHOUND_CACHE, else the system's cache folder."""
    own = os.environ.get("MODELHOUND_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "modelhound"


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
    """Remove what a kill in the middle of `_write_whole` left behind. Only the holder of the lock may."""
    for name in (_ASKED, _ANSWER):
        for unfinished in path.glob(f".{name}.*"):
            with _explain_write_errors(unfinished):
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
    _write_whole(path / _ASKED, msgspec.json.format(msgspec.json.encode(asked), indent=2))


def _describe_change(key: str, before: object, now: object) -> str:
    if key.endswith("fingerprint"):
        return f"the {key.removesuffix('_fingerprint')} changed since"  # two digests tell a reader nothing
    return f"{key} was {before!r}, now {now!r}"


def _read_asked(path: Path) -> _Asked | None:
    try:
        return msgspec.json.decode((path / _ASKED).read_bytes(), type=_Asked)
    except FileNotFoundError:
        return None
    except (OSError, *_NOT_WHAT_WE_WROTE) as error:
        raise StoreError(
            f"cannot read {str(path / _ASKED)!r}: {error}; delete the folder or choose another --run"
        ) from None


def _read_answer(path: Path) -> _Answer | None:
    with contextlib.suppress(OSError, *_NOT_WHAT_WE_WROTE):
        return msgspec.json.decode((path / _ANSWER).read_bytes(), type=_Answer)
    return None


def _read_records(path: Path) -> Iterator[AnyRecord]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StoreError(
            f"cannot read {str(path)!r}: {error.strerror or error}; delete the folder or choose another --run"
        ) from error
    for text in lines:
        with contextlib.suppress(*_NOT_WHAT_WE_WROTE):
            line = msgspec.json.decode(text, type=_Line)
            if line.crc == _checksum(bytes(line.record)):
                yield msgspec.json.decode(line.record, type=AnyRecord)


def _cut_half_written_line(path: Path) -> None:
    """A kill in mid-write leaves a line without its end; the next record must not be glued to it."""
    if not path.exists():
        return
    with _explain_write_errors(path), path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)


def _summarise(path: Path) -> RunSummary:
    try:
        run = read_run(path)
    except (StoreError, RequestError):
        return _damaged(path)
    failed = {record.model for record in run.of(Failure)}
    measured = {str(each.model) for each in run.records if hasattr(each, "model") and not isinstance(each, Failure)}
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


def _checksum(body: bytes) -> str:
    return f"{zlib.crc32(body):08x}"


def _write_whole(path: Path, content: bytes) -> None:
    """Replace a file so that a reader sees the old or the new content and never a part."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}")
    with _explain_write_errors(path):
        try:
            with unfinished.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise


def _flush_to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _explain_write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        advice = "free some space" if is_full else "make it writable"
        raise StoreError(
            f"cannot write {str(path)!r}: {error.strerror or error}; {advice}, then start the same command again: "
            "finished models are kept"
        ) from error
