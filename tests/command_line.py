"""A command as a person gives it, run in this process."""

import pytest

from modelhound import cli

__all__ = ["hound"]


def hound(captured: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """How `hound ARGV` ended, what it printed and what it said of itself."""
    code = cli.run(argv)
    out, err = captured.readouterr()
    return code, out, err
