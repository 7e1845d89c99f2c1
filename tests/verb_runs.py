"""Run folders of every verb but search, with records that were made up and answers that follow from them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from latencies import CEILINGS, record
from modelhound.analysis.bottlenecks import find_bottlenecks
from modelhound.analysis.bounds import judge_blocks
from modelhound.analysis.breakeven_findings import Asked, Timed, find_breakeven
from modelhound.analysis.latency import conclude_sweeps, find_laws
from modelhound.analysis.scaling import measure_scaling
from modelhound.records import (
    BestPair,
    Block,
    BlocksMeasured,
    ConfigurationProfiled,
    EpochDone,
    FeaturesTimed,
    FeedMeasured,
    KindAnswer,
    LatencyFailed,
    LengthPoint,
    LoaderAnswer,
    ModelTrained,
    PairRegret,
    PairSeconds,
    PhaseSamples,
    RankTrained,
    RunStarted,
    ScoringTimed,
    SearchTimed,
    TrainingTimed,
)
from modelhound.settings import LoaderSettings
from modelhound.store import open_run
from report_runs import AT, MACHINE

__all__ = ["write_verb_runs"]


def write_verb_runs(folder: Path) -> dict[str, Path]:
    """Verb -> its run."""
    makers = {"latency": _latency, "loader": _loader, "train": _train, "profile": _profile, "breakeven": _breakeven}
    return {verb: _write(folder / verb, verb, *make()) for verb, make in makers.items()}


def _write(path: Path, verb: str, records: Sequence[Any], answer: Any) -> Path:
    settings = {"data": "photos", "models": ["timm:x"], "out": "loader.json"}
    with open_run(path, verb=verb, at=AT, settings=settings, identity={}) as run:
        run.append(RunStarted(at=AT, device="cpu", machine=MACHINE))
        for each in records:
            run.append(each)
        run.write_answer(answer, headline=f"{verb} has found something")
    return path


def _latency() -> tuple[list[Any], Any]:
    """Time follows the batch exactly for one network, and hardly at all for the other; one point has no time."""
    measured = [
        *(
            record(1e-3 * batch, model="tv:resnet18", batch=batch, kernel_seconds=1e-3 * batch)
            for batch in (1, 2, 4, 8, 16)
        ),
        *(record(5e-3, model="tv:alexnet", batch=batch, kernel_seconds=1e-3) for batch in (1, 2, 4, 8, 16)),
    ]
    point = msgspec.structs.replace(measured[0].point, batch=32)
    laws = find_laws(measured, [CEILINGS], margin=0.1)
    answer = {"laws": laws, "conclusions": conclude_sweeps(laws), "prediction": ()}
    return [
        *measured,
        CEILINGS,
        LatencyFailed(point=point, why="out of memory", tried=True, message="too large"),
    ], answer


def _loader() -> tuple[list[Any], Any]:
    pairs = {(8, 0): 2.0, (8, 1): 1.0, (32, 0): 1.5, (32, 1): 1.2}
    models = ("timm:a", "timm:b")
    regret = tuple(
        PairRegret(
            **{"batch": batch, "workers": workers, "mean": each - 1, "median": each - 1, "worst": each - 1},
            worst_model="timm:a",
            interval=(0.0, each),
            chance_within=0.9,
            as_good=each < 1.1,
            num_measured=1,
        )
        for (batch, workers), each in sorted(pairs.items(), key=lambda item: item[1])
    )
    best = {"batch": 8, "workers": 1, "seconds": 1.0, "recommended_seconds": 1.0, "regret": 0.0, "bound": "decode"}
    kind = KindAnswer(
        kind="raw",
        recommended=LoaderSettings(batch=8, workers=1),
        chance_within=0.9,
        interval=(0.0, 0.1),
        regret=regret,
        top=(),
        models=tuple(BestPair(model=each, num_cores_needed=1.0, speedup_if_free=2.0, **best) for each in models),
        lengths=(LengthPoint(num_items=100, batch=8, workers=0, seconds=1.0, recommended_regret=0.5),),
        seconds=tuple(
            PairSeconds(model=model, batch=batch, workers=workers, seconds=each, measured=workers == 1)
            for model in models
            for (batch, workers), each in pairs.items()
        ),
        advice=(),
        verdict="raw: batch 8 with 1 worker suits all 2 models.",
        **{"noise": 0.02, "measuring_seconds": 1.0, "grid_seconds": 10.0, "num_runs": 2, "num_items": 100},
    )
    phases = (
        PhaseSamples(phase="wait for data", seconds=(0.3, 0.1)),
        PhaseSamples(phase="forward", seconds=(0.2, 0.2)),
    )
    fed = [
        FeedMeasured(
            **{"item_kind": "raw", "model": model, "batch": batch, "workers": workers, "num_items": 16},
            **{
                "first_batch_seconds": 0.3,
                "phases": phases,
                "wall_seconds": 1.0,
                "page_cache": "warm",
                "disk_bytes": 0,
            },
        )
        for model in models
        for batch, workers in pairs
    ]
    return fed, LoaderAnswer(data="photos", device="cpu", machine_kind="here", kinds=(kind,), notes=())


def _train() -> tuple[list[Any], Any]:
    """One and two ranks; a step takes half the time where loading is for free."""
    trained, ranks = [], []
    for count in (1, 2):
        done = EpochDone(epoch=1, loss=1.0, score=0.7 + 0.1 * count, top5=None, test_loss=1.1, rate=0.1, seconds=1.0)
        trained.append(
            ModelTrained(
                **{"model": "timm:x", "stamp": "", "num_ranks": count, "mode": "full", "batch": 8, "num_parts": 1},
                **{"num_parameters": 1000, "num_trained_parameters": 1000, "num_items": 80, "num_test_items": 40},
                **{"precision": "fp32", "metric": "accuracy", "score": done.score, "top5": None, "epochs": (done,)},
                **{"losses": (2.0, 1.5, 1.0), "checkpoint": "last", "stopped": "finished", "wall_seconds": 9.0},
            )
        )
        steps = {"wait for data": (0.1,) * 10, "forward": (0.1,) * 10, "backward": (0.2,) * 10}
        ranks += [
            RankTrained(
                **{"model": "timm:x", "num_ranks": count, "rank": rank, "device": "cpu", "num_steps": 10},
                **{"num_items": 80 // count, "peak_memory_bytes": 10**8, "num_workers": 0},
                phases=tuple(PhaseSamples(phase=name, seconds=each) for name, each in steps.items()),
                wall_seconds=sum(map(sum, steps.values())),
            )
            for rank in range(count)
        ]
    blocks = tuple(
        Block(condition=name, round=place, seconds=(seconds, seconds))
        for place in range(6)
        for name, seconds in (("live", 0.2), ("host batches", 0.1))
    )
    verdict = judge_blocks(
        BlocksMeasured(model="timm:x", num_ranks=2, num_workers=1, num_cores=2, batch=8, blocks=blocks)
    )
    answer = {"verdicts": (verdict,), "scalings": (measure_scaling(trained, ranks),)}
    return [*trained, *ranks], answer


def _profile() -> tuple[list[Any], Any]:
    found = []
    for configuration, form, forward in (("full", "full", 0.3), ("last 50%", "part", 0.1)):
        phases = {
            "read weights": (0.5,),
            "build model": (0.1,),
            "wait for data": (0.01,) * 11,
            "forward": (forward,) * 10,
        }
        phases["score"] = (0.2,)
        found.append(
            ConfigurationProfiled(
                **{"model": "timm:x", "stamp": "", "data": "photos", "device": "cpu", "precision": "fp32"},
                **{
                    "configuration": configuration,
                    "form": form,
                    "layers": "full",
                    "num_layers": 9,
                    "num_layers_run": 9,
                },
                **{"num_heads": 1, "batch": 4, "num_batches": 10, "num_batches_asked": 10, "num_warmup": 2},
                **{"num_items": 40, "weight_bytes": 1000, "input_bytes_per_item": 0, "peak_memory_bytes": 1},
                flops_per_item=1e9 * forward,
                phases=tuple(PhaseSamples(phase=name, seconds=times) for name, times in phases.items()),
                wall_seconds=sum(map(sum, phases.values())),
                **{
                    "cold": True,
                    "cold_read_seconds": (0.5,),
                    "warm_read_seconds": (0.1,),
                    "usual_build_seconds": (0.3,),
                },
                scorings=tuple(
                    ScoringTimed(scorer="probe", num_classes=10, num_items=items, seconds=(0.005 * items,) * 3)
                    for items in (20, 40)
                ),
            )
        )
    return found, find_bottlenecks(found)


def _breakeven() -> tuple[list[Any], Any]:
    """An epoch takes 1 ms an item, extracting a twentieth of ten epochs; the engine is three times as fast."""
    sizes = (100, 1000)
    trainings = [
        TrainingTimed(
            **{"model": "zoo:a", "stamp": "", "mode": mode, "num_items": size, "num_epochs": 3, "once_seconds": 0.0},
            **{"epoch_seconds": (share * size / 1000,) * 3, "wall_seconds": 1.0, "score": 0.5, "phases": ()},
        )
        for size in sizes
        for mode, share in (("full", 1.0), ("head", 0.4))
    ]
    features = [
        FeaturesTimed(
            **{"model": "zoo:a", "stamp": "", "num_items": size, "score_seconds": (0.0,) * 2},
            **{"extract_seconds": (size / 2000,) * 2, "weight_seconds": (0.0,) * 2, "wall_seconds": (size / 2000,) * 2},
        )
        for size in sizes
    ]
    searches = [
        SearchTimed(way=way, num_models=count, models=("zoo:a",) * count, num_items=100, seconds=seconds * count)
        for way, seconds in (("plain", 0.3), ("engine", 0.1))
        for count in (1, 2, 4)
    ]
    timed = Timed(trainings=trainings, features=features, searches=searches)
    return [*trainings, *features, *searches], find_breakeven(timed, Asked(epochs=10, assume={}))
