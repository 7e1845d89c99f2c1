"""Do something with a data set, and do it again without an item that turns out to be broken.

In:  what to do, the run folder that was asked for
Out: what it returned
Nothing here knows what is done. Whoever opens the data set again gets it without that item (see `Dataset.read`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from modelhound.errors import BrokenItemError
from modelhound.records import Progress, Watch
from modelhound.store import set_aside

__all__ = ["without_broken_items"]

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
