"""What a search leaves to look at: the plan as a tree, what ran when, the items as the best model sees them.

In:  the records PlanMade, Timeline and ItemMap, where a search wrote them
Out: Charts, a Tree, a Gallery
Nothing here knows pages or how the records came about.
"""

from collections.abc import Sequence
from typing import Any

import numpy

from modelhound.analysis.input_wording import input_texts
from modelhound.analysis.item_map import map_items
from modelhound.analysis.wording import bytes_text, duration_text, plural
from modelhound.records import ItemMap, PlanMade, PlanNode, Timeline, unpack_items
from modelhound.report.charts import COLOURS, SECONDS, Chart, Row, phase_scale
from modelhound.report.parts import Branch, Gallery, Picture, Tree
from modelhound.report.theme import GREY, LIGHT

__all__ = ["hardest_gallery", "map_chart", "plan_tree", "timeline_chart"]

_MOST_SPANS = 1500
_BESIDE = 1.1  # times as much work as time: less is hardly to be seen
_MOST_CHILDREN = 40  # of one node of the tree; a pool of thousands is told in numbers
_MOST_CLASSES = 2 * len(COLOURS)  # each colour as a dot and as a triangle
_REST = "other classes"


def plan_tree(plan: PlanMade, *, is_folded: bool = False) -> Tree:
    """Shared work above, what it is shared by below."""
    whole = sum(_sum_seconds(tree) for tree in plan.trees) or 1.0
    said = input_texts(tree.label for tree in plan.trees)
    return Tree(
        caption=f"Plan for {plural(plan.num_models, 'model')} and {plural(plan.num_items, 'item')}. A step runs once for all "
        "models below it; the bar is its share of the predicted time.",
        branches=tuple(_branch(tree, whole, said[tree.label]) for tree in plan.trees),
        is_folded=is_folded,
    )


def timeline_chart(timeline: Timeline) -> Chart:
    """What ran when: lanes that are busy at the same time overlap."""
    spans = sorted(timeline.spans, key=lambda span: span.start_seconds - span.end_seconds)[:_MOST_SPANS]
    rows: list[Row] = [
        {
            "lane": span.lane,
            "phase": span.phase,
            "start": span.start_seconds,
            "end": span.end_seconds,
            "seconds": span.end_seconds - span.start_seconds,
            "detail": span.detail,
        }
        for span in sorted(spans, key=lambda span: span.start_seconds)
    ]
    busy = sum(span.end_seconds - span.start_seconds for span in timeline.spans)
    lanes = list(dict.fromkeys(span.lane for span in timeline.spans))
    phases = list(dict.fromkeys(span.phase for span in timeline.spans))
    left_out = len(timeline.spans) - len(rows)
    return Chart(
        name="search_timeline",
        title="What ran when",
        caption=_overlap_text(timeline, busy, num_lanes=len(lanes))
        + (f" The {plural(left_out, 'shortest piece')} are left out." if left_out else ""),
        data=tuple(rows),
        draw=lambda data: _draw_timeline(data, lanes, phases),
    )


def _overlap_text(timeline: Timeline, busy: float, *, num_lanes: int) -> str:
    if num_lanes == 1:  # of a cluster, which says what it is told to do and not what each worker does
        return f"One thing after the other, {duration_text(timeline.wall_seconds)} in all; workers share each of them."
    beside = "lanes run beside each other" if busy > _BESIDE * timeline.wall_seconds else "little ran at the same time"
    return f"{duration_text(busy)} of work took {duration_text(timeline.wall_seconds)}: {beside}."


def map_chart(item_map: ItemMap) -> Chart:
    """Items in two dimensions, coloured by what they are."""
    x, y = map_items(unpack_items(item_map.features).reshape(-1, item_map.num_features)).T
    targets, hardness = unpack_items(item_map.targets), unpack_items(item_map.hardness)
    shown = _most_frequent(targets, item_map.class_names)
    hard = {each.position for each in item_map.hardest}
    rows: tuple[Row, ...] = tuple(
        {
            "x": round(float(x[place]), 4),
            "y": round(float(y[place]), 4),
            "target": _target_text(targets[place], item_map.class_names),
            "class": _shown_class(targets[place], item_map.class_names, shown),
            "value": None if item_map.class_names else float(targets[place]),
            "hard": place in hard,
            "hardness": round(float(hardness[place]), 4),
            "item": item_map.items[place] if place < len(item_map.items) else str(place),
        }
        for place in range(len(x))
    )
    domain = [*shown, _REST] if len(item_map.class_names) > len(shown) else list(shown)
    return Chart(
        name="search_map",
        title=f"The items as {item_map.model} sees them",
        caption=f"One dot per item; what the model takes for alike lies together ({item_map.method}). "
        "Ringed items are the hardest ones, shown below. Axes have no unit.",
        data=rows,
        draw=lambda data: _draw_map(data, domain),
    )


def hardest_gallery(item_map: ItemMap) -> Gallery:
    """The hardest items, hardest first."""
    pictures = []
    for each in item_map.hardest:
        note = "" if each.right_share is None else f"{each.right_share:.0%}\N{NO-BREAK SPACE}right"
        pictures.append(
            Picture(
                title=each.target,
                note=f"{each.item} · {note}" if note else each.item,
                content=each.picture,
                content_type=each.picture_type,
                text=each.text,
            )
        )
    return Gallery(
        caption=f"The {plural(len(pictures), 'item')} that {item_map.model} finds hardest, in its own order. The share of "
        "all models that get an item right tells whether others find it hard too. Wrong labels often hide here.",
        pictures=tuple(pictures),
    )


def _sum_seconds(node: PlanNode) -> float:
    total, todo = 0.0, [node]
    while todo:
        here = todo.pop()
        total += here.seconds
        todo.extend(here.children)
    return total


def _branch(node: PlanNode, whole: float, said: str) -> Branch:
    notes = []
    if node.num_models > 1:
        notes.append(f"shared by {plural(node.num_models, 'model')}")
    if node.seconds:
        notes.append(duration_text(node.seconds))
    if node.weight_bytes:
        notes.append(f"{bytes_text(node.weight_bytes)} of weights")
    if node.keep != "nothing" and node.children and node.output_bytes:
        notes.append(f"{bytes_text(node.output_bytes)} kept {'on disk' if node.keep == 'disk' else 'in memory'}")
    children = [_branch(child, whole, child.label) for child in node.children[:_MOST_CHILDREN]]
    left_out = node.children[_MOST_CHILDREN:]
    if left_out:
        seconds = sum(_sum_seconds(child) for child in left_out)
        models = sum(child.num_models for child in left_out)
        children.append(
            Branch(label=f"and {plural(models, 'more model')}", note=duration_text(seconds), share=seconds / whole)
        )
    label = f"{said} → {_few(node.finishes)}" if node.finishes else said
    return Branch(label=label, note=" · ".join(notes), share=node.seconds / whole, children=tuple(children))


def _few(models: Sequence[str]) -> str:
    shown = ", ".join(models[:3])
    return shown if len(models) <= 3 else f"{shown} and {len(models) - 3} more"


def _most_frequent(targets: "numpy.ndarray", class_names: Sequence[str]) -> list[str]:
    """Classes that get a colour of their own, in their own order."""
    if len(class_names) <= _MOST_CLASSES:
        return list(class_names)
    counts = numpy.bincount(targets.astype(int), minlength=len(class_names))
    frequent = set(numpy.argsort(-counts, kind="stable")[: _MOST_CLASSES - 1].tolist())
    return [name for place, name in enumerate(class_names) if place in frequent]


def _target_text(target: float, class_names: Sequence[str]) -> str:
    return class_names[int(target)] if class_names else f"{float(target):.4g}"


def _shown_class(target: float, class_names: Sequence[str], shown: Sequence[str]) -> str | None:
    if not class_names:
        return None
    name = class_names[int(target)]
    return name if name in shown else _REST


def _draw_timeline(data: Any, lanes: list[str], phases: list[str]) -> Any:
    import altair

    return (
        altair.Chart(data, height=altair.Step(34))
        .mark_bar()
        .encode(
            x=altair.X("start:Q", title="seconds since the start"),
            x2="end:Q",
            y=altair.Y("lane:N", sort=lanes, title=None),
            color=altair.Color("phase:N", scale=phase_scale(phases), title=None),
            tooltip=[
                "lane:N",
                "phase:N",
                "detail:N",
                *(altair.Tooltip(f"{each}:Q", format=SECONDS) for each in _TIMES),
            ],
        )
    )


_TIMES = ("start", "end", "seconds")
_SHAPES = ("circle", "triangle-up")


def _draw_map(data: Any, classes: list[str]) -> Any:
    import altair

    no_axis = altair.Axis(labels=False, ticks=False, grid=False, domain=False, title=None)
    base = altair.Chart(data, height=420).encode(x=altair.X("x:Q", axis=no_axis), y=altair.Y("y:Q", axis=no_axis))
    tooltip = ["target:N", "item:N", altair.Tooltip("hardness:Q", format=".3f")]
    if classes:
        colours = [GREY if name == _REST else COLOURS[place % len(COLOURS)] for place, name in enumerate(classes)]
        shapes = ["square" if name == _REST else _SHAPES[place // len(COLOURS)] for place, name in enumerate(classes)]
        colour = altair.Color("class:N", scale=altair.Scale(domain=classes, range=colours), title=None)
        dots = base.mark_point(filled=True, size=40, opacity=0.75).encode(
            color=colour, shape=altair.Shape("class:N", scale=altair.Scale(domain=classes, range=shapes), title=None)
        )
    else:
        dots = base.mark_circle(size=40, opacity=0.75).encode(color=altair.Color("value:Q", title="target"))
    hard = base.transform_filter("datum.hard")
    ring = hard.mark_point(filled=False, size=170, strokeWidth=1.6, color=LIGHT.text, opacity=0.9)
    return dots.encode(tooltip=tooltip) + ring.encode(tooltip=tooltip)
