"""What came back: frozen, typed, torch-free, and one line of JSON each.

In:  measurements made by the rooms above
Out: records that `store` appends and reads back, that `analysis` computes on and that a report is drawn from
Nothing here knows how a number was measured or where it will be kept. Times are raw samples in seconds. One file per verb
that has records of its own, `run` for what all have in common.
"""

from modelhound.records.packing import pack_items, to_plain, unpack_items
from modelhound.records.run import (
    Failure,
    ItemSkipped,
    Machine,
    PhaseSamples,
    Progress,
    Record,
    RunStarted,
    Watch,
    silent,
)
from modelhound.records.search import ModelDropped, ModelMeasured, RankedModel, Ranking

__all__ = [
    "AnyRecord",
    "Failure",
    "ItemSkipped",
    "Machine",
    "ModelDropped",
    "ModelMeasured",
    "PhaseSamples",
    "Progress",
    "RankedModel",
    "Ranking",
    "Record",
    "RunStarted",
    "Watch",
    "pack_items",
    "silent",
    "to_plain",
    "unpack_items",
]

AnyRecord = RunStarted | ItemSkipped | Failure | ModelMeasured | ModelDropped
"""Every kind of line a record file can hold."""
