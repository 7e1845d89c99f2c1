"""What is not run by every test, such as benchmarks and tests that need a GPU, still fits the package."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "zoo", "tests/gpu", "tests/real", "tests/ray")
    for path in ROOT.glob(f"{folder}/*.py")
)


def _imports(path: Path) -> list[tuple[str, str]]:
    """Module and name, of all that is taken from the package, at the top and inside functions."""
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in found if (node.module or "").partition(".")[0] == "modelhound"]
    return [(node.module or "", alias.name) for node in ours for alias in node.names]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_takes_nothing_from_the_package_that_is_not_there(script: Path) -> None:
    for module, name in _imports(script):
        is_there = hasattr(importlib.import_module(module), name)
        assert is_there or importlib.util.find_spec(f"{module}.{name}"), f"{module} has no {name}"


def test_there_are_such_scripts() -> None:
    assert len(SCRIPTS) > 20
