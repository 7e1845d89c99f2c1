"""Two nodes that reach each other only through a cable of their own, and the cable pulled out."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fault_log import counted

ALONE = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def test_a_search_goes_on_without_a_node_whose_network_is_cut(tmp_path: Path) -> None:
    if "HOUND_RAY" not in os.environ:
        pytest.skip("in make test-faults, with HOUND_RAY=1")
    pytest.importorskip("ray")
    if not all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip")):
        pytest.skip("network namespaces need util-linux and iproute2")
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system lets nobody make network namespaces")
    script = Path(__file__).with_name("namespaces.py")
    with counted("network of a Ray node cut", "search --on ray"):
        done = subprocess.run(
            [*ALONE, sys.executable, str(script), str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=420,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert found["two nodes"] == found["one machine"]
        assert found["in mid-run"]
        assert found["cable pulled out"] == found["one machine"]
