"""What other packages need before they import, tried in processes that have not imported them yet."""

import os
import subprocess
import sys

import pytest

from modelhound.compat import wait_asleep


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    return subprocess.run(
        [sys.executable, "-c", code], env={**clean, **environment}, capture_output=True, text=True, check=False
    )


def test_torchvision_imports_whether_or_not_its_operators_fit_this_torch() -> None:
    """Two processes that have torch and nothing else: one imports torchvision itself, and the other has it imported."""
    code = (
        "import os, torch\n"
        "other = os.fork()\n"
        "if not other:\n"
        "    import torchvision\n"
        "    os._exit(0)\n"
        "fits = os.waitpid(other, 0)[1] == 0\n"
        "from modelhound.compat import import_torchvision, torchvision_ops_available as ops\n"
        "import_torchvision()\n"
        "from torchvision.transforms import v2; import timm\n"
        "print(fits, ops())"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr
    fits, available = done.stdout.split()
    assert available == fits


def test_another_failure_of_torchvision_is_not_hidden() -> None:
    code = (
        "import sys, types; from modelhound import compat\n"
        "import importlib\n"
        "def broken(name): raise RuntimeError('the disk is on fire')\n"
        "importlib.import_module = broken\n"
        "compat.import_torchvision()"
    )
    assert "the disk is on fire" in python(code).stderr


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_freed_memory_is_kept_and_used_again() -> None:
    code = (
        "import resource; from modelhound.compat import keep_freed_memory\n"
        "if {keep}: assert keep_freed_memory()\n"
        "for turn in range(6):\n"
        "    if turn == 3: before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    block = bytes([turn]) * 64_000_000; del block\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    given_back, kept = (int(python(code.format(keep=keep)).stdout) for keep in (False, True))
    assert given_back > 10 * (kept + 10)


def test_threads_wait_asleep_after_a_short_look_unless_the_user_says_otherwise() -> None:
    code = (
        "import os; from modelhound.compat import wait_asleep\n"
        "print(wait_asleep(), *(os.environ.get(name) for name in ('OMP_WAIT_POLICY', 'GOMP_SPINCOUNT')))"
    )
    assert python(code).stdout.split() == ["True", "PASSIVE", "1000"]
    assert python(code, GOMP_SPINCOUNT="7").stdout.split() == ["True", "PASSIVE", "7"]
    # where it is set, a number of looks counts for more than the policy
    assert python(code, OMP_WAIT_POLICY="ACTIVE").stdout.split() == ["True", "ACTIVE", "None"]


def test_it_is_too_late_once_torch_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch  # noqa: F401

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    assert not wait_asleep()
    assert not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & set(os.environ)
