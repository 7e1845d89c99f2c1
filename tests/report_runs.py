"""Run folders of searches that never ran: as many models, as odd names and as many failures as a test wants."""

from pathlib import Path

import numpy

from modelhound.analysis.ranking import rank_models
from modelhound.records import (
    Failure,
    HardItem,
    ItemMap,
    Machine,
    ModelDropped,
    ModelMeasured,
    PhaseSamples,
    PlanMade,
    PlanNode,
    RunStarted,
    Span,
    Timeline,
    pack_items,
    to_plain,
)
from modelhound.settings import SearchSettings
from modelhound.store import RunFolder, open_run

AT = "2026-03-01T12:30:00Z"

MACHINE = Machine(
    hostname="somewhere",
    system="Linux",
    cpu="A processor",
    num_cores=2,
    memory_bytes=8_000_000_000,
    gpus=(),
    driver=None,
    python="3.11.7",
    versions={"modelhound": "0.1.0", "torch": "2.13.0"},
    commit=None,
)

ODD_NAMES = (
    "timm:<script>alert('x')</script>",
    'hf:o\'clock/"quoted"&amp;',
    "file:/tmp/🐕/ünïcödé model",
    "zoo:" + "long" * 74,
    "zoo:</script><!--",
    "zoo:{{ page.title }}{% raw %}|*_`",
)

SMALLEST_PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)


def write_search(
    path: Path,
    models: list[str],
    *,
    failures: tuple[str, ...] = (),
    num_dropped: int = 0,
    num_items: int = 120,
    finish: bool = True,
    views: bool = False,
    seed: int = 0,
) -> Path:
    """A search whose first model is the best and whose scores fall from model to model."""
    settings = SearchSettings("fashion", models=tuple(models) or ("zoo:*",), limit=num_items)
    generator = numpy.random.default_rng(seed)
    measured = [measure(model, place, len(models), num_items, generator) for place, model in enumerate(models)]
    dropped = [drop(place, num_items) for place in range(num_dropped)]
    with open_run(path, verb="search", at=AT, settings=to_plain(settings), identity={}) as run:
        run.append(RunStarted(at=AT, device="cpu", machine=MACHINE))
        append_all(run, [*measured, *dropped])
        append_all(run, [Failure(model=each, phase="read weights", error=f"cannot read {each!r}") for each in failures])
        if views and models:
            append_all(run, [plan(models), timeline(models), item_map(models[0], num_items, generator)])
        if finish:
            ranking = rank_models(measured, rests_on=("ridge",), seed=0, dropped=dropped)
            run.write_answer(ranking, headline=models[0] if models else "no model could be measured")
    return path


def append_all(run: RunFolder, records: list) -> None:  # type: ignore[type-arg]
    """As a search appends them, but without waiting for the disk after each of thousands."""
    from modelhound.store.lines import make_line

    with (run.path / "records.jsonl").open("ab") as file:
        file.write(b"".join(map(make_line, records)))


def measure(
    model: str, place: int, num_models: int, num_items: int, generator: numpy.random.Generator
) -> ModelMeasured:
    chance = 0.9 - 0.6 * place / max(num_models, 1)
    items = (generator.random(num_items) < chance).astype("f4")
    seconds = 0.5 + generator.random()
    return ModelMeasured(
        model=model,
        num_parameters=int(10 ** (4 + 4 * generator.random())),
        num_features=64,
        num_items=num_items,
        scores={"ridge": float(items.mean()), "knn": float(items.mean()) - 0.02, "logme": float(generator.random())},
        item_scores={"ridge": pack_items(items)},
        phases=(
            PhaseSamples(phase="read weights", seconds=(0.1 * seconds,)),
            PhaseSamples(phase="forward", seconds=(0.3 * seconds, 0.3 * seconds)),
            PhaseSamples(phase="score", seconds=(0.2 * seconds,)),
        ),
        wall_seconds=seconds,
        peak_memory_bytes=1_000_000,
        notes=("a note <b>of</b> it",) if place == 0 else (),
    )


def drop(place: int, num_items: int) -> ModelDropped:
    return ModelDropped(
        model=f"zoo:dropped-{place}",
        stamp="",
        num_parameters=1000 + place,
        num_items=num_items // 4 if place % 2 else num_items // 2,
        score=0.2,
        chance=0.004,
        top=5,
        seconds=0.1,
    )


def plan(models: list[str]) -> PlanMade:
    ends = tuple(PlanNode(label="segments 4 to 9", finishes=(model,), num_models=1, seconds=0.5) for model in models)
    shared = PlanNode(label="segments 1 to 3", num_models=len(models), keep="memory", seconds=1.0, children=ends)
    root = PlanNode(label="data 32 x 32", num_models=len(models), seconds=0.1, children=(shared,))
    return PlanMade(num_items=120, num_models=len(models), seconds=4.0, seconds_alone=8.0, trees=(root,))


def timeline(models: list[str]) -> Timeline:
    spans = []
    for place, model in enumerate(models):
        spans.append(
            Span(lane="weights", phase="read weights", start_seconds=place, end_seconds=place + 0.6, detail=model)
        )
        spans.append(
            Span(lane="device", phase="forward", start_seconds=place + 0.4, end_seconds=place + 1.3, detail=model)
        )
    return Timeline(wall_seconds=len(models) + 0.3, spans=tuple(spans))


def item_map(model: str, num_items: int, generator: numpy.random.Generator) -> ItemMap:
    places = generator.random((2, num_items)).astype("f4")
    return ItemMap(
        model=model,
        method="by chance",
        features=pack_items(places.T.ravel()),
        num_features=2,
        targets=pack_items(numpy.arange(num_items) % 3),
        class_names=("cat", "<b>dog</b>", "owl"),
        hardness=pack_items(generator.random(num_items)),
        items=tuple(f"item {place}" for place in range(num_items)),
        hardest=(
            HardItem(
                item="item 7", position=7, target="<b>dog</b>", hardness=1.0, right_share=0.25, picture=SMALLEST_PICTURE
            ),
            HardItem(item="item 8", position=8, target="owl", hardness=0.9, text="a text with <tags> & more"),
        ),
    )
