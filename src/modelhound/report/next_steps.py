"""What to do after a run: command lines that work as they stand, the likeliest first.

In:  a run and what its page says of it
Out: pairs of a label and a command line
Nothing here runs anything, or decides what the page says.
"""

import math
import shlex
from typing import TypeAlias

from modelhound.errors import is_explained
from modelhound.records import Failure, Ranking, RunStarted
from modelhound.report.commands import (
    arithmetic_of,
    command_on_same_data,
    command_to_repeat,
    command_to_train,
    needed_by,
)
from modelhound.report.search_view import SearchView
from modelhound.store import Run

__all__ = [
    "Steps",
    "after_breakeven",
    "after_latency",
    "after_loader",
    "after_profile",
    "after_search",
    "after_train",
    "before_the_end",
    "best_model",
]

Steps: TypeAlias = tuple[tuple[str, str], ...]

_LONGER = 4  # times as many samples halve an interval
_MOST_SECONDS = 3600.0  # that a point may be sampled for


def before_the_end(run: Run) -> Steps:
    """Of a run without an answer: the same request goes on where it was stopped."""
    return (("Where it was stopped, go on with it", f"{_again(run)}{_same_folder(run)}"),)


def after_search(view: SearchView) -> Steps:
    """Fine-tune the best; where it is not clear which that is, what would tell."""
    ranking, settings = view.ranking, view.run.settings
    best, finals = best_model(ranking), ranking.finals
    if view.run.answer is None:
        return before_the_end(view.run)
    if not ranking.models:
        is_told = all(is_explained(each.error) for each in view.run.of(Failure))
        return () if is_told else (("See whether this machine is the cause", "hound doctor"),)
    if (
        finals is None and not ranking.is_guess_beaten
    ):  # nobody knows what to train, and perhaps there is nothing to learn
        if settings.get("limit") is None:
            return ()
        return (("See whether all items tell more", command_to_repeat("search", settings, limit=None)),)
    label = "Fine-tune it on all items" if settings.get("limit") else "Fine-tune it"  # a search can do with fewer
    steps = [(label, command_to_train(settings, best))] if best else []
    num_tied = sum(row.rank == 1 for row in ranking.models)
    if finals is None:
        if num_tied > 1 and settings.get("on", "local") == "local":  # finals are held on one machine
            label = f"Or see what short fine-tuning tells of the {num_tied} that share rank 1"
            # a limit is for what is planned: fine-tuning takes what it needs
            changes = {"finals": "auto", "finals_budget": None, "memory": None}
            steps.append((label, command_to_repeat("search", settings, **changes)))
        return tuple(steps)
    if finals.read_back is not None:
        label = "Or go on from its checkpoint of the finals, which learned from a part of the items"
        steps.append((label, command_to_train(settings, finals.read_back)))
    if finals.ended == "budget" and finals.verdict != "won":
        longer = f"{math.ceil(2 * finals.budget_seconds)}s"
        again = _again(view.run, finals_budget=longer)  # in the same folder: what was trained is not trained again
        steps.append(("Or give the finals twice the time", f"{again}{_same_folder(view.run)}"))
    return tuple(steps)


def best_model(ranking: Ranking) -> str | None:
    """The first, or who won the finals; None where nobody can be told, or nobody tells more than guessing does."""
    if ranking.finals is not None:
        return ranking.finals.winner
    return ranking.models[0].model if ranking.models and ranking.is_guess_beaten else None


def after_latency(run: Run, *, bound: str, num_untold: int) -> Steps:
    """More samples where they would tell; where the host is what is slow, let torch compile; else the same again, later."""
    steps = []
    if num_untold:
        seconds = min(_MOST_SECONDS, _LONGER * float(run.settings.get("seconds") or 0.5))
        longer = _again(run, seconds=f"{seconds:g}", sampling=None)  # timm's way takes forty calls, however long
        steps.append(("Measure for longer, to tell what cannot be told yet", longer))
    if bound == "launch" and not run.settings.get("compile"):
        steps.append(("Let torch compile them, since launches are what takes long", _again(run, compile=True)))
    later = shlex.join(["--compare", str(run.path), "--run", f"{run.path}-later"])
    return tuple(steps) or (("See later whether anything has become slower", f"{_again(run)} {later}"),)


def after_loader(run: Run) -> Steps:
    """A search loads in its own way and takes over one number; from the file where one was written, else what is remembered."""
    out, models = run.settings.get("out"), run.settings.get("models")
    label = "Search with the batch size that computes fastest"
    if not out:
        label += ", which a search of data like this takes over by itself"
    needed = {"where": run.settings.get("where"), **needed_by(run.settings, models or ())}
    return ((label, command_on_same_data("search", run.settings, models=models, **needed, loader=out or None)),)


def after_train(run: Run, *, model: str, bound: str) -> Steps:
    """What the verdict asks for; of cached features there is none to be had."""
    settings = run.settings
    can_be_told = settings.get("mode") != "cached"
    if bound == "data-bound":
        line = command_on_same_data("loader", settings, models=model, **needed_by(settings, [model]))
        return (("Find loader settings that keep up", line),)
    if can_be_told and settings.get("verdict") == "none":
        return (("See what bounds it", _again(run, verdict="auto")),)
    if can_be_told and bound in ("", "cannot be told"):
        epochs = 3 * int(settings.get("epochs") or 1)
        return (("Train for longer, so that more can be told", _again(run, epochs=epochs)),)
    started = run.of(RunStarted)
    num_gpus = len(started[-1].machine.gpus) if started else 0
    if num_gpus > 1 and len(settings.get("ranks") or ()) < 2:
        return (("See how it scales", _again(run, ranks=f"1,{num_gpus}")),)
    return (("Look for a network that is as good and faster", command_on_same_data("search", settings)),)


def after_profile(run: Run, *, bottleneck: str, models: tuple[str, ...]) -> Steps:
    """The verb that looks closer at what is slow."""
    settings = run.settings
    asked = {"models": list(models), **needed_by(settings, models)}
    if bottleneck == "data":
        return (("Find loader settings that keep up", command_on_same_data("loader", settings, **asked)),)
    if bottleneck == "forward":
        line = command_to_repeat("latency", {**asked, **arithmetic_of(settings)})
        return (("See by which law it grows, and why", line),)
    label = "See what a search of these models would take, all together"
    return ((label, command_on_same_data("search", settings, **asked, explain=True)),)


def after_breakeven(run: Run) -> Steps:
    """What searching would take here, before it is done."""
    return (("See what a search would take here", command_on_same_data("search", run.settings, explain=True)),)


def _same_folder(run: Run) -> str:
    """Where a folder was named: what is in it is gone on with."""
    given = run.settings.get("run")
    return f" {shlex.join(['--run', str(given)])}" if given else ""


def _again(run: Run, **changes: object) -> str:
    return command_to_repeat(run.verb, run.settings, **changes)
