"""The laws of ARCHITECTURE.md that can be read off the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "modelhound"
MODULES = {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
CLOCKS = {
    *("time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "thread_time"),
    *("now", "utcnow", "today", "elapsed_time"),
}
OUTSIDE = {"os", "socket", "subprocess", "urllib", "http", "shutil", "psutil", "torch", "multiprocessing"}


def _read_clocks(tree: ast.AST) -> Iterator[str]:
    """Names of clocks that are called, however they were imported."""
    imported = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else imported.get(getattr(called, "id", ""), "")
            if name in CLOCKS:
                yield f"{name} in line {node.lineno}"


def test_only_meter_reads_a_clock() -> None:
    found = {path: list(_read_clocks(tree)) for path, tree in MODULES.items() if not path.startswith("meter/")}
    assert {path: clocks for path, clocks in found.items() if clocks} == {}


@pytest.mark.parametrize(
    "line",
    ["import time; time.perf_counter()", "from time import monotonic as m; m()", "start.elapsed_time(end)"],
)
def test_a_clock_is_seen_however_it_is_read(line: str) -> None:
    assert list(_read_clocks(ast.parse(line)))


def test_settings_ask_nothing_of_the_machine() -> None:
    for path, tree in MODULES.items():
        if path.startswith("settings/"):
            named = [
                name.partition(".")[0]
                for node in ast.walk(tree)
                if isinstance(node, ast.Import | ast.ImportFrom)
                for name in (
                    [node.module or ""] if isinstance(node, ast.ImportFrom) else [each.name for each in node.names]
                )
            ]
            assert OUTSIDE.isdisjoint(named), path
