"""What a search leaves to look at: the items as the best model sees them, the plan, what ran when."""

import io
from dataclasses import replace

import numpy
import pytest
from PIL import Image

from modelhound.analysis.item_map import map_items
from modelhound.data import OwnTransform, Preprocessing, open_dataset
from modelhound.features.supply import input_key
from modelhound.measuring.looking import look_at_items
from modelhound.records import PlanMade, PlanNode, Span, Timeline, pack_items, unpack_items
from modelhound.report.search_exhibits import hardest_gallery, map_chart, plan_tree, timeline_chart
from report_runs import measure

PIXELS = Preprocessing(
    input_size=(32, 48),
    interpolation="bilinear",
    crop_fraction=1.0,
    crop_mode="center",
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)


@pytest.mark.parametrize(("data", "limit"), [("digits", 60), ("fashion", 1000), ("sms", 60)])
def test_every_item_is_a_dot_and_the_hardest_are_shown(data: str, limit: int) -> None:
    dataset = open_dataset(data, limit=limit)
    generator = numpy.random.default_rng(0)
    best, other = (measure(name, 0, 1, len(dataset), generator) for name in ("zoo:best", "zoo:other"))
    found = look_at_items(generator.normal(size=(len(dataset), 16)), dataset, best, [best, other], scorer="ridge")
    num_dots = len(unpack_items(found.features)) // found.num_features
    assert num_dots == len(found.items) == min(len(dataset), 800)
    own = unpack_items(best.item_scores["ridge"])
    names = list(dataset.item_names)
    for each in found.hardest[: int((own == 0).sum())]:
        position = names.index(each.item)
        assert own[position] == 0
        assert found.items[each.position] == each.item
        assert each.target == dataset.class_names[int(dataset.targets[position])]
        if data == "sms":
            assert dataset.read(position)[0].startswith(each.text.rstrip("…"))
        else:
            with Image.open(io.BytesIO(each.picture)) as picture:
                assert max(picture.size) <= 112
    chart = map_chart(found)
    assert len(chart.data) == num_dots
    assert sum(bool(row["hard"]) for row in chart.data) == len(found.hardest) == len(hardest_gallery(found).pictures)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_features_of_any_size_have_a_map_on_which_neighbours_lie_together(scale: float) -> None:
    generator = numpy.random.default_rng(0)
    centres = numpy.repeat([[3.0, 0, 0, 0], [0, 3.0, 0, 0]], 20, axis=0)
    places = map_items(((centres + 0.1 * generator.standard_normal((40, 4))) * scale).astype(numpy.float32))
    first, second = places[:20], places[20:]
    apart = numpy.linalg.norm(first.mean(axis=0) - second.mean(axis=0))
    assert apart > 2 * max(numpy.linalg.norm(each - each.mean(axis=0), axis=1).mean() for each in (first, second))


def test_many_classes_share_a_colour_and_are_still_named() -> None:
    dataset = open_dataset("digits", limit=40)
    best = measure("zoo:best", 0, 1, len(dataset), numpy.random.default_rng(0))
    found = look_at_items(numpy.random.default_rng(1).normal(size=(40, 4)), dataset, best, [best], scorer="ridge")
    import msgspec

    many = msgspec.structs.replace(
        found, targets=pack_items(numpy.arange(40)), class_names=tuple(f"class {place}" for place in range(40))
    )
    rows = map_chart(many).data
    assert len({row["target"] for row in rows}) == 40
    assert len({row["class"] for row in rows}) == 16


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (f"{'0a' * 32} 128", "texts of up to 128 tokens"),
        (input_key(PIXELS), "images of 32 x 48, bilinear"),
        (input_key(OwnTransform(transform=len, input_size=(8, 9))), "images of 8 x 9, a transform of their own"),  # type: ignore[arg-type]
    ],
    ids=("texts", "pixels", "own transform"),
)
def test_the_plan_says_what_items_are_made_into_and_no_key(key: str, said: str) -> None:
    root = PlanNode(label=f"data {key}", num_models=1, seconds=1.0)
    plan = PlanMade(num_items=10, num_models=1, seconds=1.0, seconds_alone=1.0, trees=(root,))
    assert plan_tree(plan).branches[0].label == said


def test_inputs_that_would_read_the_same_say_in_what_they_differ() -> None:
    trees = tuple(
        PlanNode(label=f"data {input_key(form)}", num_models=1, seconds=1.0)
        for form in (PIXELS, replace(PIXELS, mean=(0.25, 0.5, 0.25)), replace(PIXELS, interpolation="bicubic"))
    )
    plan = PlanMade(num_items=10, num_models=3, seconds=1.0, seconds_alone=1.0, trees=trees)
    assert [each.label for each in plan_tree(plan).branches] == [
        f"images of 32 x 48, bilinear, mean {PIXELS.mean[0]:.3g}",
        "images of 32 x 48, bilinear, mean 0.25 0.5 0.25",
        "images of 32 x 48, bicubic",
    ]


def test_a_cluster_that_does_one_thing_after_the_other_is_not_said_to_be_idle() -> None:
    spans = [Span(lane="cluster", phase=each, start_seconds=at, end_seconds=at + 1) for at, each in enumerate("ab")]
    told = timeline_chart(Timeline(wall_seconds=2.0, spans=tuple(spans))).caption
    assert told.startswith("One thing after the other")
    assert told.endswith("in all; workers share each of them.")
