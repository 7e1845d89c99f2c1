"""Fixtures every test may use. Each test gets its own cache and working folder, so that nothing leaks between them."""

import os
import signal

# Read when numpy and torch are loaded, so before anything else here: without it, a second busy process makes the suite several
# times slower (see compat.wait_asleep), and products of numpy take four times the work in threads that wait for each other.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # there is one for each core
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell has what it runs in the background ignore Ctrl-C, which every process that a test starts would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

# A server that forks processes finds `warm` by it: what this process has added to its path is not handed on.
_HERE = str(Path(__file__).parent)
_FOUND = os.environ.get("PYTHONPATH", "").split(os.pathsep)
if _HERE not in _FOUND:
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*_FOUND, _HERE]))


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("MODELHOUND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("COLUMNS", raising=False)  # tables get the room they need, whatever runs the tests


@pytest.fixture
def image_folder(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of class folders with small, learnable images: a class is a brightness."""

    def make(num_classes: int = 3, per_class: int = 8, name: str = "photos") -> Path:
        generator = np.random.default_rng(0)
        for label in range(num_classes):
            folder = tmp_path / name / f"class{label}"
            folder.mkdir(parents=True)
            for index in range(per_class):
                noise = generator.normal(40 + 170 * label / max(1, num_classes - 1), 12, size=(24, 30, 3))
                Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / f"{index:03}.png")
        return tmp_path / name

    return make


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked by a server that has timm loaded already."""
    from modelhound.launch.worker import Worker
    from warm_workers import start_worker

    monkeypatch.setattr(Worker, "_start", start_worker)
