"""A small hub on loopback: enough of the Hugging Face protocol for the real client to look models up and download them.

root/ORG/NAME/FILE is a file of the repository ORG/NAME, on its branch main; root/ORG/NAME@REVISION/FILE is one on another
branch or a tag. A commit is a hash over the files, so that it changes when they do.
"""

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@contextlib.contextmanager
def serve_hub(
    root: Path,
    *,
    cut_off: bool | str = False,
    wrong_size: str | None = None,
    gated: Collection[str] = (),
    facts: Mapping[str, Mapping[str, Any]] | None = None,
    asked: list[str] | None = None,
) -> Iterator[str]:
    """Serve `root`; the address is what HF_ENDPOINT wants.

    `cut_off`: downloads break off in the middle, all of them or those of files that end so. `wrong_size`: files that end
    so are announced longer than they are. `gated`: repositories whose files nobody may have. `facts`: what the hub says
    of a repository besides its files, such as downloads and tags. `asked`: filled with what was asked for.
    """
    hub = _Hub(root, facts or {})

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            if asked is not None:
                asked.append(f"{self.command} {self.path}")
            url = urlsplit(self.path)
            path = unquote(url.path).lstrip("/")
            if path.startswith("api/models"):
                self._answer_question(path.removeprefix("api/models").strip("/"), parse_qs(url.query))
                return
            repository, found, rest = path.partition("/resolve/")
            revision, _, name = rest.partition("/")
            folder = hub.folder(repository, revision)
            if repository in gated:
                self._refuse(403, "GatedRepo")
            elif not hub.knows(repository):
                self._refuse(404, "RepoNotFound")
            elif folder is None:
                self._refuse(404, "RevisionNotFound")
            elif not found or not (folder / name).is_file():
                self._refuse(404, "EntryNotFound")
            else:
                self._send_file(folder, name, with_body=with_body)

        def _answer_question(self, path: str, query: Mapping[str, list[str]]) -> None:
            if not path:
                wanted = [query.get(each, [""])[0] for each in ("author", "search")]
                names = [name for name in hub.names() if name.startswith(wanted[0]) and wanted[1] in name]
                self._send_json([hub.describe(name, "main") for name in names])
                return
            repository, _, revision = path.partition("/revision/")
            if not hub.knows(repository):
                self._refuse(404, "RepoNotFound")
            elif hub.folder(repository, revision or "main") is None:
                self._refuse(404, "RevisionNotFound")
            else:
                self._send_json(hub.describe(repository, revision or "main"))

        def _send_file(self, folder: Path, name: str, *, with_body: bool) -> None:
            content = (folder / name).read_bytes()
            longer = 10 if wrong_size and name.endswith(wrong_size) and not with_body else 0
            self.send_response(200)
            self.send_header("X-Repo-Commit", hub.commit(folder))
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content) + longer))
            self.end_headers()
            if with_body:
                breaks_off = name.endswith(cut_off) if isinstance(cut_off, str) else cut_off
                self.wfile.write(content[: len(content) // 2] if breaks_off else content)

        def _send_json(self, value: Any) -> None:
            content = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Hub:
    """What lies below a folder, as repositories."""

    def __init__(self, root: Path, facts: Mapping[str, Mapping[str, Any]]) -> None:
        self._root, self._facts = root, facts

    def names(self) -> list[str]:
        found = {path.relative_to(self._root).as_posix().partition("@")[0] for path in self._root.glob("*/*")}
        return sorted(found)

    def knows(self, repository: str) -> bool:
        return (self._root / repository).is_dir()

    def folder(self, repository: str, revision: str) -> Path | None:
        """Where the files of a branch, tag or commit lie."""
        parent = (self._root / repository).parent
        named = {path.name.partition("@")[2] or "main": path for path in parent.glob(f"{Path(repository).name}*")}
        named = {name: path for name, path in named.items() if path.name.partition("@")[0] == Path(repository).name}
        return named.get(revision) or {self.commit(path): path for path in named.values()}.get(revision)

    def commit(self, folder: Path) -> str:
        digest = hashlib.sha1(usedforsecurity=False)
        for name in self._files(folder):
            digest.update(name.encode() + (folder / name).read_bytes())
        return digest.hexdigest()

    def describe(self, repository: str, revision: str) -> dict[str, Any]:
        folder = self.folder(repository, revision)
        assert folder is not None
        return {
            "id": repository,
            "sha": self.commit(folder),
            "siblings": [{"rfilename": name} for name in self._files(folder)],
            **self._facts.get(repository, {}),
        }

    @staticmethod
    def _files(folder: Path) -> list[str]:
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
