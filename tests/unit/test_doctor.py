"""How `doctor` goes about it; what it finds is looked at in `tests/cli`."""

import re
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from hub import serve_hub
from modelhound.feature_store import FeatureStore
from modelhound.models.hub_client import HubClient
from modelhound.records import Progress
from modelhound.verbs import doctor


def test_it_is_told_what_is_looked_at_until_all_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = {name: look for name, look in doctor._LOOKS.items() if name in ("cores", "memory", "shared memory", "disk")}
    monkeypatch.setattr(doctor, "_LOOKS", quick)
    told: list[Progress] = []
    found = doctor.doctor(watch=told.append)
    assert [each.name for each in found.checks] == list(quick)
    assert [each.detail for each in told] == [*quick, ""]
    assert [each.done for each in told] == [0, 1, 2, 3, 4]
    assert {each.total for each in told} == {4}


def test_memory_that_a_limit_leaves_is_told_and_not_that_of_the_whole_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LOOKS", {"memory": doctor._LOOKS["memory"]})
    monkeypatch.setattr(doctor, "available_memory", lambda: 1 << 30)
    (check,) = doctor.doctor().checks
    assert check.verdict == "slow"
    assert check.finding.startswith("1.0 of ")
    assert check.finding.endswith(" GiB free, all that a limit (of a container, a job) leaves")


def test_it_says_how_much_is_remembered_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELHOUND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "_LOOKS", {"disk": doctor._LOOKS["disk"]})
    (nothing,) = doctor.doctor().checks
    assert f"; 0.0 GiB of features are remembered in {tmp_path / 'cache'}" in nothing.finding
    assert nothing.advice == ""
    monkeypatch.setattr(doctor, "_GIBIBYTE", 1000)
    FeatureStore().write("a model", ["item"], np.zeros((1, 4000), np.float32))
    (some,) = doctor.doctor().checks
    remembered = re.search(r"; (\d+\.\d) GiB of features", some.finding)
    assert remembered is not None
    assert 16 <= float(remembered[1]) < 17
    assert some.advice == "may be removed at any time"


def test_a_cache_that_cannot_be_used_is_told_and_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_LOOKS", {"disk": doctor._LOOKS["disk"]})

    def look(cache: Path) -> doctor.Check:
        monkeypatch.setenv("MODELHOUND_CACHE", str(cache))
        (check,) = doctor.doctor().checks
        return check

    (tmp_path / "file").write_bytes(b"")
    assert look(tmp_path / "new" / "cache").verdict != "broken"
    for cache in (tmp_path / "file", tmp_path / "file" / "cache"):
        assert look(cache).verdict == "broken"
        assert look(cache).finding == f"{cache} cannot be written to"

    def refuse(store: FeatureStore) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(FeatureStore, "size_bytes", refuse)  # who runs tests may be allowed everything
    assert look(tmp_path / "closed").verdict == "broken"


def test_it_asks_the_hub_that_is_set_and_says_whether_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr(doctor, "_LOOKS", {"models": doctor._LOOKS["models"]})

    def look(endpoint: str) -> doctor.Check:
        monkeypatch.setattr(doctor, "HubClient", lambda: HubClient(endpoint=endpoint))
        (check,) = doctor.doctor().checks
        return check

    asked: list[str] = []
    with serve_hub(tmp_path, asked=asked) as endpoint:
        assert "the hub answers" in look(endpoint).finding
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert "HF_HUB_OFFLINE is set" in look(endpoint).finding
        assert len(asked) == 1, "who is offline asks nobody"
    monkeypatch.delenv("HF_HUB_OFFLINE")
    gone = look(endpoint)
    assert (gone.verdict, f"the hub at {endpoint} does not answer" in gone.finding) == ("note", True)
    assert "HF_ENDPOINT" in gone.advice


def test_a_hub_that_keeps_silent_is_not_waited_for_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        began = time.monotonic()
        silence = HubClient(endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}").why_silent(patience_seconds=0.5)
        assert time.monotonic() - began < 5
    assert silence is not None
    assert "does not answer" in silence
