"""The live page: on this machine only, two paths only, and newer when there are newer records."""

import http.client
import json
import socket
import struct
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from modelhound.records import Progress
from modelhound.report import live
from modelhound.report.live import serve_live
from modelhound.store import RunFolder
from report_runs import append_all, measure, write_search


def ask(address: str, path: str | None = None, *, host: str | None = None, method: str = "GET") -> tuple[int, str]:
    parts = urlsplit(address)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    connection.request(method, parts.path if path is None else path, headers={"Host": host} if host else {})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_LEAST_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(live, "_LARGEST_SHARE", 1e9)
    monkeypatch.setattr(live, "_LONGEST_FAREWELL_SECONDS", 0.2)


def test_the_page_changes_when_records_arrive(tmp_path: Path) -> None:
    import numpy

    path = write_search(tmp_path / "run", ["zoo:first"], finish=False)
    with serve_live(path) as served:
        address = served.address
        status, page = ask(address)
        assert status == 200
        assert "zoo:first" in page
        assert "still running" in page
        before = json.loads(ask(address, urlsplit(address).path + "version")[1])
        assert f'data-live="{before["version"]}"' in page
        assert json.loads(ask(address, urlsplit(address).path + "version")[1]) == before
        append_all(RunFolder(path), [measure("zoo:second", 0, 1, 120, numpy.random.default_rng(5))])
        after = json.loads(ask(address, urlsplit(address).path + "version")[1])
        assert after["version"] != before["version"]
        assert not after["finished"]
        assert "zoo:second" in ask(address)[1]
        write_search(tmp_path / "other", ["zoo:first"])
        (path / "answer.json").write_bytes((tmp_path / "other" / "answer.json").read_bytes())
        assert json.loads(ask(address, urlsplit(address).path + "version")[1])["finished"]


def test_a_run_that_has_not_begun_shows_a_page_that_waits(tmp_path: Path) -> None:
    with serve_live(tmp_path / "later") as served:
        address = served.address
        status, page = ask(address)
        assert status == 200
        assert "Nothing has been measured yet." in page
        assert "window.vegaEmbed" in page  # the charts come later, and only what is above them is fetched then
        write_search(tmp_path / "later", ["zoo:a"], finish=False)
        assert "zoo:a" in ask(address)[1]


@pytest.mark.parametrize("sent", [b"", b"GET / HT"])
def test_a_browser_that_goes_away_in_mid_request_leaves_nothing_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], sent: bytes
) -> None:
    with serve_live(tmp_path / "later") as served:
        connection = socket.create_connection(("127.0.0.1", urlsplit(served.address).port))
        connection.sendall(sent)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # an end without farewell
        connection.close()
        assert ask(served.address, "/")[0] == 404  # it goes on, and has made nothing of the other, which came first
        deadline = time.monotonic() + 20
        while any("process_request_thread" in thread.name for thread in threading.enumerate()):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert capfd.readouterr() == ("", "")


def test_nothing_else_is_served(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", ["zoo:a"])
    with serve_live(path) as served:
        address = served.address
        root = urlsplit(address).path
        for other in ("/", root[:-1], f"{root}records.jsonl", f"{root}../run/asked.json", "/asked.json", f"{root}?x"):
            assert ask(address, other)[0] == 404, other
        assert ask(address, method="POST")[0] == 501


def test_a_page_of_another_site_cannot_read_it(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", ["zoo:a"])
    with serve_live(path) as served:
        address = served.address
        assert ask(address, host="evil.example")[0] == 403
        assert ask(address, host=f"localhost:{urlsplit(address).port}")[0] == 200


def test_it_listens_on_the_loopback_only_and_stops_with_the_search(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", ["zoo:a"])
    with serve_live(path) as served:
        address = served.address
        assert urlsplit(address).hostname == "127.0.0.1"
        port = urlsplit(address).port or 0
        with socket.socket() as other:
            other.bind(("127.0.0.2", port))  # free: the server is bound to one address and not to all
    with pytest.raises(ConnectionRefusedError):
        ask(address)


def test_pages_are_not_made_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "_LEAST_PAUSE_SECONDS", 1000.0)
    path = write_search(tmp_path / "run", ["zoo:a"], finish=False)
    with serve_live(path) as served:
        address = served.address
        before = ask(address)[1]
        (path / "more").write_text("x")
        assert ask(address)[1] == before


def test_the_folder_may_be_told_later(tmp_path: Path) -> None:
    with serve_live() as served:
        assert "Nothing has been measured yet." in ask(served.address)[1]
        served.follow(write_search(tmp_path / "run", ["zoo:a"], finish=False))
        assert "zoo:a" in ask(served.address)[1]


def test_what_is_being_done_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    path = write_search(tmp_path / "run", [], finish=False)
    with serve_live(path) as served:
        page = ask(served.address)[1]
        assert "No model has been measured yet." in page
        assert "What failed" not in page
        assert page.count("Where it was stopped") == 1, (
            "not as the next step; at the end it says how to go on after a stop"
        )
        served.watch(Progress(task="items", done=30, total=120, detail="zoo:a"))
        version = json.loads(ask(served.address, urlsplit(served.address).path + "version")[1])
        assert version["progress"] == "items zoo:a: 30 of 120"


def test_whoever_looks_sees_the_end_and_nobody_else_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "_LONGEST_FAREWELL_SECONDS", 5.0)
    path = write_search(tmp_path / "run", ["zoo:a"], finish=False)
    write_search(tmp_path / "other", ["zoo:a"])
    seen: list[str] = []
    with serve_live(path) as served:
        assert "still running" in ask(served.address)[1]
        (path / "answer.json").write_bytes((tmp_path / "other" / "answer.json").read_bytes())
        reader = threading.Timer(0.3, lambda: seen.append(ask(served.address)[1]))
        reader.start()  # asks when the search has ended: the server is still there
    reader.join()
    assert "still running" not in seen[0]
