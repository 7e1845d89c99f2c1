"""Starting a cluster takes half a minute, so that all of this is part of `make test-faults` (HOUND_RAY=1)."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from ray_cluster import start_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two nodes in processes of this machine, one such cluster for each file of tests."""
    if "HOUND_RAY" not in os.environ:
        pytest.skip("in make test-faults, with HOUND_RAY=1")
    pytest.importorskip("ray")
    with start_cluster(tmp_path_factory.mktemp("home")) as made:
        yield made
