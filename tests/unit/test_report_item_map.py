"""The items as the best model sees them: dots, and the hardest with what they look like."""

import io

import numpy
import pytest
from PIL import Image

from modelhound.data import open_dataset
from modelhound.measuring.looking import look_at_items
from modelhound.records import pack_items, unpack_items
from modelhound.report.search_views import hardest_gallery, map_chart
from report_runs import measure


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
