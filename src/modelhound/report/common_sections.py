"""What every page ends with: what did not work, the machine, what was asked, the command to ask it again.

In:  a run, of any verb
Out: Sections
Nothing here knows what a verb measures.
"""

from collections.abc import Hashable, Sequence
from typing import Any

from modelhound.analysis.newest import newest_failures, newest_pairs_failed, newest_points
from modelhound.analysis.wording import bytes_text, moment_text, plural
from modelhound.records import ItemSkipped, LoaderUsed, Machine, RunStarted
from modelhound.report.commands import command_to_repeat
from modelhound.report.parts import Cell, Column, Commands, Section, Table
from modelhound.store import Run

__all__ = [
    "command_section",
    "failure_section",
    "find_failures",
    "kicker",
    "machine_section",
    "machine_text",
    "setting_text",
]


def kicker(run: Run) -> str:
    """What was asked, when and where, in a few words."""
    started = run.of(RunStarted)
    parts = [f"hound {run.verb}", str(run.settings.get("data") or ""), moment_text(run.at)]
    if started:
        machine = started[-1].machine
        parts.append(machine.gpus[0] if started[-1].device.startswith("cuda") and machine.gpus else machine.cpu)
    return " · ".join(part for part in parts if part)


def find_failures(run: Run) -> list[tuple[str, str, str]]:
    """What failed, where, and why: models, points of a sweep, pairs of loader settings; not what a later start has done."""
    found = [(each.model, each.phase, each.error) for each in newest_failures(run.records)]
    for each in newest_points(run.records)[1].values():
        point = each.point
        what = f"{point.model}, {point.shape_text}, {point.precision} on {point.device}"
        found.append((what, each.why, each.message or ("" if each.tried else "known before it was tried")))
    for pair in newest_pairs_failed(run.records):
        what = f"{pair.for_model or 'loading alone'}, {pair.batch} x {pair.workers}"
        found.append((what, pair.phase, pair.error))
    return list(dict.fromkeys(found))


def failure_section(run: Run, *, notes: Sequence[tuple[str, str]] = ()) -> Section | None:
    """What failed, what was left out, and what to know of single results; None where all went well."""
    blocks = []
    failures = find_failures(run)
    if failures:
        blocks.append(_texts_table("What failed", ("what", "phase", "why"), failures))
    skipped = list(dict.fromkeys((each.item, each.reason) for each in run.of(ItemSkipped)))
    if skipped:
        blocks.append(_texts_table("Items that could not be read and take no part", ("item", "why"), skipped))
    if notes:
        blocks.append(_texts_table("What to know of single results", ("of", "note"), list(notes)))
    if not blocks:
        return None
    said = [plural(len(failures), "failure")] if failures else []
    said += [f"{plural(len(skipped), 'item')} left out"] if skipped else []
    said += [plural(len(notes), "note")] if notes else []
    return Section(name="failures", title="What did not work", lead=f"{', '.join(said)}.", blocks=tuple(blocks))


def machine_section(run: Run) -> Section | None:
    """Where it ran, with which versions, and with what `hound loader` had found."""
    started = run.of(RunStarted)
    if not started:
        return None
    rows: list[tuple[str, str]] = [
        (f"start {place}", moment_text(each.at)) for place, each in enumerate(started, start=1)
    ]
    rows += [("device", started[-1].device), *_machine_rows(started[-1].machine)]
    others = {_comparable(each.machine) for each in started} - {_comparable(started[-1].machine)}
    lead = machine_text(started[-1].machine)
    if others:
        lead += f" Earlier starts ran on {plural(len(others), 'other machine')} or with other versions."
    loaders = run.of(LoaderUsed)
    if loaders:
        lead += f" {loaders[-1].sentence()}"
    return Section(
        name="machine",
        title="Machine",
        lead=lead,
        blocks=(_texts_table("Versions and details", ("what", "found"), rows, is_folded=True),),
    )


def command_section(run: Run, *, more: Sequence[tuple[str, str]] = ()) -> Section:
    """The command lines, and every setting they stand for."""
    lines = (("Ask the same again", command_to_repeat(run.verb, run.settings)), *more)
    rows = [(name.replace("_", " "), setting_text(value)) for name, value in run.settings.items()]
    return Section(
        name="commands",
        title="Do it again",
        blocks=(
            Commands(lines=lines),
            _texts_table("What was asked, defaults included", ("setting", "value"), rows, is_folded=True),
        ),
    )


def machine_text(machine: Machine) -> str:
    """One sentence."""
    gpus = f", {', '.join(dict.fromkeys(machine.gpus))}" if machine.gpus else ", no GPU"
    return f"{machine.cpu}, {plural(machine.num_cores, 'core')}, {bytes_text(machine.memory_bytes)} of memory{gpus}."


def _machine_rows(machine: Machine) -> list[tuple[str, str]]:
    rows = [
        ("processor", machine.cpu),
        ("cores", str(machine.num_cores)),
        ("memory", bytes_text(machine.memory_bytes)),
        ("GPUs", ", ".join(machine.gpus) or "none"),
        ("GPU driver", machine.driver or "none"),
        ("system", machine.system),
        ("Python", machine.python),
    ]
    rows += [(name, version) for name, version in machine.versions.items()]
    return rows if machine.commit is None else [*rows, ("commit of modelhound", machine.commit)]


def _comparable(machine: Machine) -> Hashable:
    return machine.cpu, machine.gpus, tuple(machine.versions.items())


def setting_text(value: Any) -> str:
    """What was asked, as a table has it."""
    if value is None:
        return "–"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "–"
    return "yes" if value is True else "no" if value is False else str(value)


def _texts_table(
    caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, is_folded: bool = False
) -> Table:
    return Table(
        caption=caption,
        columns=tuple(Column(name=name) for name in columns),
        rows=tuple(tuple(Cell(text) for text in row) for row in rows),
        is_folded=is_folded,
    )
