"""Addresses at which there is no Ray cluster: a sentence, soon, and nothing else."""

import socket
from collections.abc import Iterator

import pytest

from modelhound.errors import RequestError
from modelhound.launch import connection


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port that takes calls and says nothing."""
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def _refusal(port: int) -> str:
    with pytest.raises(RequestError) as refused:
        connection.find_device(connection.parse_address(f"ray://127.0.0.1:{port}"))
    return str(refused.value)


def test_a_port_where_something_else_listens_is_refused_before_ray_asks_there(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(connection, "_KNOCK_SECONDS", 1)
    assert "does not answer as Ray does, whose own port is 6379" in _refusal(listener.getsockname()[1])
    assert capfd.readouterr() == ("", "")


def test_a_port_where_nobody_listens_is_refused_at_once(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    listener.close()
    assert f"cannot reach a Ray cluster at '127.0.0.1:{port}': [Errno 111] Connection refused" in _refusal(port)


def test_plain_ray_names_no_address() -> None:
    assert connection.parse_address("ray") is None
    assert connection.parse_address("ray://head:6379") == "head:6379"
