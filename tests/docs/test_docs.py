"""What the pages say is so: links lead somewhere, commands parse, rooms and targets exist, the zoo's table is the zoo's."""

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from modelhound import cli, settings

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("zoo/*.md"), *ROOT.glob("benchmarks/**/*.md")]
)
README = (ROOT / "README.md").read_text()
MISSION = (ROOT / "docs" / "mission.md").read_text()
COMMANDS = sorted(
    set(re.findall(r"^(?:\$ )?(hound .+?)(?:  +#.*)?$", README, flags=re.MULTILINE))
    | set(re.findall(r"`(hound [^`]+)`", MISSION))
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in link:
            assert (page.parent / link).exists(), link


def test_every_picture_is_shown_somewhere() -> None:
    shown = "".join(page.read_text() for page in PAGES)
    pictures = sorted((ROOT / "docs" / "pictures").iterdir())
    assert [each.name for each in pictures if f"pictures/{each.name}" not in shown] == []


def test_every_point_of_the_mission_has_a_command_and_something_that_holds_it() -> None:
    lines = [line for line in MISSION.splitlines() if line.startswith("| ") and not line.startswith("| point |")]
    assert len(lines) >= 35
    for line in lines:
        point, command, held = (cell.strip() for cell in line.strip("|").split("|"))
        assert point
        assert re.search(r"`[^`]+`", command), line
        assert re.search(r"\]\(\.\./(tests|benchmarks/results)/[^)]+\)", held), line


@pytest.mark.parametrize("before", ["`make demo` ends like this.*?```", r"\$ hound search digits .*?200"])
def test_what_the_readme_shows_was_seen_on_a_machine_that_is_named(before: str) -> None:
    shown = re.search(rf"{before}\n(.*?)```", README, flags=re.DOTALL)
    assert shown is not None
    assert shown[1] in (ROOT / "benchmarks" / "results" / "demo_epyc2_202611.md").read_text()


def test_the_readme_shows_commands() -> None:
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_parse(command: str) -> None:
    _, *argv = shlex.split(command)
    function, bound, _ = cli.app.parse_args(argv, exit_on_error=False, print_error=False)
    assert callable(function)
    assert bound is not None


@pytest.mark.parametrize("target", sorted(set(re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE))))
def test_make_targets_of_the_readme_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)


def test_the_architecture_page_names_every_room_and_no_other() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"^\| `([a-z_]+)(?:\.py|/)` \|", page, flags=re.MULTILINE))
    package = ROOT / "src" / "modelhound"
    rooms = {path.stem for path in package.glob("*.py") if not path.stem.startswith("__")}
    rooms |= {path.parent.name for path in package.glob("*/__init__.py")}
    assert named == rooms


def test_what_the_architecture_page_names_is_there() -> None:
    rooms = {path.parent.name for path in (ROOT / "src" / "modelhound").glob("*/__init__.py")}
    told = re.findall(r"`([a-z_]+)\.(\w+)(?:\.(\w+))?`", (ROOT / "ARCHITECTURE.md").read_text())
    named = [(room, name, part) for room, name, part in told if room in rooms]
    assert len(named) > 15
    for room, name, part in named:
        is_module = importlib.util.find_spec(f"modelhound.{room}.{name}") is not None
        home = importlib.import_module(f"modelhound.{room}.{name}" if is_module else f"modelhound.{room}")
        for wanted in (part,) if is_module else (name,):
            assert not wanted or hasattr(home, wanted), f"{room}.{name}.{part}"


def test_the_readme_names_every_default_scorer() -> None:
    for scorer in settings.DEFAULT_SCORERS:
        assert f"`{scorer}`" in README


def test_the_zoos_page_shows_the_table_of_its_files() -> None:
    script = [
        sys.executable,
        str(ROOT / "zoo" / "train.py"),
        "--table",
        "--out",
        str(ROOT / "src/modelhound/models/weights"),
    ]
    table = subprocess.run(script, capture_output=True, text=True, check=True).stdout.strip()
    assert table in (ROOT / "zoo" / "README.md").read_text()


def test_the_public_names_are_these() -> None:
    import modelhound

    assert sorted(modelhound.__all__) == [
        "BreakevenResult",
        "BreakevenSettings",
        "HoundError",
        "LatencyResult",
        "LatencySettings",
        "LoaderResult",
        "LoaderSearchSettings",
        "LoaderSettings",
        "PrepareResult",
        "PrepareSettings",
        "ProfileResult",
        "ProfileSettings",
        "RequestError",
        "SearchResult",
        "SearchSettings",
        "TrainResult",
        "TrainSettings",
        "__version__",
        "breakeven",
        "doctor",
        "latency",
        "loader",
        "prepare",
        "profile",
        "read_loader",
        "search",
        "train",
    ]
    for name in modelhound.__all__:
        assert getattr(modelhound, name) is not None
    assert callable(modelhound.search)
    assert set(dir(modelhound)) == set(modelhound.__all__)
