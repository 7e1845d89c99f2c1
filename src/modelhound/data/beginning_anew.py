"""Do something with a data set, and do it again without an item that turns out to be broken; put on record what is left out.

In:  what to do, the run folder that was asked for
Out: what it returned
Nothing here knows what is done. Whoever opens the data set again gets it without that item (see `Dataset.read`).
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from modelhound.errors import BrokenItemError
from modelhound.records import ItemSkipped, Progress, Watch
from modelhound.store import RunFolder, set_aside

__all__ = ["keep_skipped", "without_broken_items"]

Result = TypeVar("Result")


def without_broken_items(do: Callable[[], Result], *, run: Path | None, watch: Watch) -> Result:
    """Begin anew for every item that is broken; `run` is None where the folder is named after the items."""
    told: set[str] = set()
    while True:
        try:
            return do()
        except BrokenItemError as error:
            if str(error) in told:  # it could not be remembered that this one is broken
                raise
            told.add(str(error))
            if run is not None:
                set_aside(run)  # or it would be refused, since without the item it is another request
            watch(Progress(task="starting again", done=0, total=1, detail=str(error)))


def keep_skipped(run: RunFolder, skipped: Iterable[ItemSkipped]) -> None:
    """Put items that are left out on record, each once, however often the run is started."""
    known = set(run.read(ItemSkipped))
    for item in dict.fromkeys(skipped):
        if item not in known:
            run.append(item)
