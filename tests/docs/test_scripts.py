"""What is not run by every test, such as benchmarks and tests that need a GPU, still fits the package."""

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for folder in ("benchmarks", "zoo", "tests/gpu", "tests/real", "tests/ray")
    for path in ROOT.glob(f"{folder}/*.py")
)


def _imports(tree: ast.AST) -> list[tuple[str, ast.alias]]:
    """Module and name, of all that is taken from the package, at the top and inside functions."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in found if (node.module or "").partition(".")[0] == "modelhound"]
    return [(node.module or "", alias) for node in ours for alias in node.names]


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, Any]]:
    """Calls of functions and classes of the package by their names, and what is called."""
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    theirs = {
        alias.asname or alias.name: getattr(importlib.import_module(module), alias.name, None)
        for module, alias in _imports(tree)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in own:
            called = theirs.get(node.func.id)
            if callable(called):
                yield node, called


def _why_refused(call: ast.Call, called: Any) -> str:
    """Why it does not take what it is given; empty where it does, or where that is not written out."""
    names = [keyword.arg for keyword in call.keywords]
    if None in names or any(isinstance(each, ast.Starred) for each in call.args):
        return ""
    try:
        inspect.signature(called).bind(*call.args, **dict.fromkeys(filter(None, names)))
    except TypeError as error:
        return str(error)
    except ValueError:  # of what is not written in Python nobody knows
        return ""
    return ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_takes_nothing_from_the_package_that_is_not_there(script: Path) -> None:
    for module, alias in _imports(ast.parse(script.read_text())):
        is_there = hasattr(importlib.import_module(module), alias.name)
        assert is_there or importlib.util.find_spec(f"{module}.{alias.name}"), f"{module} has no {alias.name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_gives_to_what_it_calls_what_that_takes(script: Path) -> None:
    for call, called in _calls(ast.parse(script.read_text())):
        why = _why_refused(call, called)
        assert not why, f"line {call.lineno}: {ast.unparse(call.func)}: {why}"


def test_there_are_such_scripts() -> None:
    assert len(SCRIPTS) > 20
