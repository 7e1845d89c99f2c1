"""A small hub on loopback: enough of the Hugging Face protocol for the real client to download one repository's files."""

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def serve_hub(root: Path, *, cut_off: bool = False) -> Iterator[str]:
    """Serve root/ORG/NAME/FILE as files of the repository ORG/NAME; the address is what HF_ENDPOINT wants."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            repository, found, rest = self.path.lstrip("/").partition("/resolve/")
            file = root / repository / rest.partition("/")[2]
            if not found or not file.is_file():
                known = (root / repository).is_dir()
                self.send_response(404)
                self.send_header("X-Error-Code", "EntryNotFound" if known else "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            content = file.read_bytes()
            self.send_response(200)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body:
                self.wfile.write(content[: len(content) // 2] if cut_off else content)

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
