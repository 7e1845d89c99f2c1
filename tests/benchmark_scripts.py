"""Scripts of benchmarks/ as modules: they lie in no package."""

import importlib.util
from pathlib import Path
from types import ModuleType

__all__ = ["load_script"]


def load_script(name: str) -> ModuleType:
    specification = importlib.util.spec_from_file_location(
        name, Path(__file__).parents[1] / "benchmarks" / f"{name}.py"
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
