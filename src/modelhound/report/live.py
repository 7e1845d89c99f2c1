"""The page of a running search, on this machine only, changing as records arrive.

In:  the run folder that a search is filling
Out: a LivePage: an address on 127.0.0.1, with a path nobody can guess, for as long as the `with` lasts
Two things are served and nothing else: the page, and whether there is a newer one. Other machines cannot reach it, and a page
of another site cannot read it (the Host is checked). The page is made when somebody looks, and never so often that it would
take more than a small share of the time: what is being measured must not notice.
"""

import contextlib
import dataclasses
import http.server
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import msgspec

from modelhound.errors import HoundError
from modelhound.meter import seconds_now
from modelhound.records import Progress
from modelhound.report.page import render_page
from modelhound.report.pages import build_page
from modelhound.report.parts import Page
from modelhound.store import read_run

__all__ = ["LivePage", "serve_live"]

_ADDRESS = "127.0.0.1"
_LARGEST_SHARE = 0.05  # of the time, for making pages
_LEAST_PAUSE_SECONDS = 1.0
_LONGEST_FAREWELL_SECONDS = 5.0  # a page asks every 1.5 s: whoever looks sees the end


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LivePage:
    """A page that is being served."""

    address: str
    """To open in a browser of this machine."""
    follow: Callable[[Path], None]
    """Show the run in this folder from now on."""
    watch: Callable[[Progress], None]
    """Say how far the work has come: models are measured together, so that records may be long in coming."""


@contextlib.contextmanager
def serve_live(path: Path | None = None) -> Iterator[LivePage]:
    """Serve the page of the run in folder `path`, which may not exist yet, or that of whatever `follow` is told later."""
    book = _Book(path)
    word = secrets.token_urlsafe(12)
    server = _QuietServer((_ADDRESS, 0), _make_handler(book, f"/{word}/"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True, name="live page")
    thread.start()
    try:
        yield LivePage(address=f"http://{_ADDRESS}:{server.server_port}/{word}/", follow=book.follow, watch=book.watch)
        book.say_farewell()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Book:
    """The newest page, made anew when the run folder has changed and enough time has passed."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen = ""
        self._html = b""
        self._finished = False
        self._not_before = 0.0
        self._progress = ""
        self._asked_at: float | None = None
        self._shown_to_the_end = threading.Event()

    def read(self) -> tuple[bytes, bytes]:
        """The page, and what the page asks for to know whether it is the newest."""
        with self._lock:
            self._asked_at = now = seconds_now()
            if not self._html or (self._state() != self._seen and now >= self._not_before):
                self._make()
                spent = seconds_now() - now
                self._not_before = now + max(_LEAST_PAUSE_SECONDS, spent / _LARGEST_SHARE)
            version = {"version": self._seen, "finished": self._finished, "progress": self._progress}
            return self._html, msgspec.json.encode(version)

    def follow(self, path: Path) -> None:
        """Show this run folder from now on."""
        with self._lock:
            self._path = path
            self._not_before = 0.0

    def watch(self, progress: Progress) -> None:
        """Keep what the work says of itself."""
        self._progress = f"{progress.task} {progress.detail}".rstrip() + f": {progress.done} of {progress.total}"

    def was_sent(self) -> None:
        """Whoever asked has the page that was newest."""
        if self._finished:
            self._shown_to_the_end.set()

    def say_farewell(self) -> None:
        """Wait for a page that is open somewhere to fetch the answer; for nobody else."""
        with self._lock:
            self._not_before = 0.0
            is_watched = self._asked_at is not None and seconds_now() - self._asked_at < _LONGEST_FAREWELL_SECONDS
        if is_watched:
            self._shown_to_the_end.wait(_LONGEST_FAREWELL_SECONDS)

    def _make(self) -> None:
        state = self._state()
        page = _WAITING
        if self._path is not None:
            with contextlib.suppress(HoundError):  # not begun yet, or not readable this moment
                run = read_run(self._path)
                page = build_page([run])
                self._finished = run.answer is not None
                if not self._finished:
                    page = dataclasses.replace(page, next_steps=())  # it goes on by itself
        name = self._path.name if self._path else "a search"
        self._html = render_page(page, sources=name, live=state).encode()
        self._seen = state

    def _state(self) -> str:
        """Changes when a file of the run folder does."""
        sizes = [str(self._path)]
        with contextlib.suppress(OSError):
            for file in sorted(self._path.iterdir()) if self._path else ():
                with contextlib.suppress(OSError):
                    found = file.stat()
                    sizes.append(f"{file.name}:{found.st_size}:{found.st_mtime_ns}")
        return f"{hash(tuple(sizes)) & 0xFFFFFFFFFFFF:x}"


_WAITING = Page(
    title="Waiting · modelhound",
    kicker="hound search",
    answer=("Nothing has been measured yet.",),
    sentences=(("This page changes by itself when there is something to see.",),),
    is_running=True,
)


class _QuietServer(http.server.ThreadingHTTPServer):
    """Says nothing of browsers that go away in the middle of a request: the terminal belongs to the search."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever asked gets no answer, and asks again."""


def _make_handler(book: _Book, root: str) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        """Two paths, one method."""

        server_version = "modelhound"
        sys_version = ""

        def do_GET(self) -> None:
            port = cast(http.server.HTTPServer, self.server).server_port
            if self.headers.get("Host") not in (f"{_ADDRESS}:{port}", f"localhost:{port}"):
                self._answer(403, b"this page is for this machine only", "text/plain")
            elif self.path == root:
                self._answer(200, book.read()[0], "text/html; charset=utf-8")
                book.was_sent()
            elif self.path == f"{root}version":
                self._answer(200, book.read()[1], "application/json")
            else:
                self._answer(404, b"there is nothing else here", "text/plain")

        def _answer(self, status: int, content: bytes, kind: str) -> None:
            with contextlib.suppress(ConnectionError):  # whoever asked has gone
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Cache-Control", "no-store")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Referrer-Policy", "no-referrer")
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """See `_QuietServer`."""

    return Handler
