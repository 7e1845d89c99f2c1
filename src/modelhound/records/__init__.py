"""What came back: frozen, typed, torch-free, and one line of JSON each.

In:  measurements made by the rooms above
Out: records that `store` appends and reads back, that `analysis` computes on and that a report is drawn from
Nothing here knows how a number was measured or where it will be kept. Times are raw samples in seconds. One file per verb
that has records of its own, `run` for what all have in common.
"""

from modelhound.records.breakeven import (
    BreakEvenCount,
    BreakevenFindings,
    ExtrapolationStep,
    FeaturesTimed,
    RatioRow,
    SearchTimed,
    TrainingTimed,
    WayOfSearching,
)
from modelhound.records.finals import Finalist, FinalsAnswer, FinalsCosts, TrialDone
from modelhound.records.latency import (
    CeilingsMeasured,
    Cost,
    LatencyFailed,
    LatencyMeasured,
    LatencyPoint,
    OperatorKind,
    WhyFailed,
)
from modelhound.records.loader import (
    Advice,
    BestPair,
    FeedMeasured,
    ItemsPrepared,
    KindAnswer,
    LengthPoint,
    LoaderAnswer,
    LoaderUsed,
    LoadMeasured,
    PairFailed,
    PairRegret,
    PairSeconds,
    StepMeasured,
    TopCount,
    TuneMeasured,
)
from modelhound.records.packing import pack_items, to_document, to_plain, unpack_items
from modelhound.records.profile import (
    BottleneckFound,
    BottleneckMoves,
    ConfigurationProfiled,
    ProfileFindings,
    SavingMeasured,
    ScoringTimed,
)
from modelhound.records.run import (
    Failure,
    ItemSkipped,
    Machine,
    PhaseSamples,
    PhasesTimed,
    Progress,
    Record,
    RunStarted,
    Watch,
    silent,
)
from modelhound.records.search import ModelDropped, ModelMeasured, RankedModel, Ranking
from modelhound.records.search_views import HardItem, ItemMap, PlanMade, PlanNode, SearchForeseen, Span, Timeline
from modelhound.records.train import (
    Block,
    BlocksMeasured,
    EpochDone,
    ModelTrained,
    Operator,
    OperatorsProfiled,
    RankTrained,
    SavedModel,
    TelemetrySample,
)

__all__ = [
    "Advice",
    "AnyRecord",
    "BestPair",
    "Block",
    "BlocksMeasured",
    "BottleneckFound",
    "BottleneckMoves",
    "BreakEvenCount",
    "BreakevenFindings",
    "CeilingsMeasured",
    "ConfigurationProfiled",
    "Cost",
    "EpochDone",
    "ExtrapolationStep",
    "Failure",
    "FeaturesTimed",
    "FeedMeasured",
    "Finalist",
    "FinalsAnswer",
    "FinalsCosts",
    "HardItem",
    "ItemMap",
    "ItemSkipped",
    "ItemsPrepared",
    "KindAnswer",
    "LatencyFailed",
    "LatencyMeasured",
    "LatencyPoint",
    "LengthPoint",
    "LoadMeasured",
    "LoaderAnswer",
    "LoaderUsed",
    "Machine",
    "ModelDropped",
    "ModelMeasured",
    "ModelTrained",
    "Operator",
    "OperatorKind",
    "OperatorsProfiled",
    "PairFailed",
    "PairRegret",
    "PairSeconds",
    "PhaseSamples",
    "PhasesTimed",
    "PlanMade",
    "PlanNode",
    "ProfileFindings",
    "Progress",
    "RankTrained",
    "RankedModel",
    "Ranking",
    "RatioRow",
    "Record",
    "RunStarted",
    "SavedModel",
    "SavingMeasured",
    "ScoringTimed",
    "SearchForeseen",
    "SearchTimed",
    "Span",
    "StepMeasured",
    "TelemetrySample",
    "Timeline",
    "TopCount",
    "TrainingTimed",
    "TrialDone",
    "TuneMeasured",
    "Watch",
    "WayOfSearching",
    "WhyFailed",
    "pack_items",
    "silent",
    "to_document",
    "to_plain",
    "unpack_items",
]

AnyRecord = (
    RunStarted
    | ItemSkipped
    | Failure
    | ModelMeasured
    | ModelDropped
    | FinalsCosts
    | TrialDone
    | ConfigurationProfiled
    | TrainingTimed
    | FeaturesTimed
    | SearchTimed
    | CeilingsMeasured
    | LatencyMeasured
    | LatencyFailed
    | LoaderUsed
    | PlanMade
    | Timeline
    | ItemMap
    | StepMeasured
    | LoadMeasured
    | FeedMeasured
    | TuneMeasured
    | ItemsPrepared
    | PairFailed
    | ModelTrained
    | RankTrained
    | BlocksMeasured
    | OperatorsProfiled
)
"""Every kind of line a record file can hold."""
