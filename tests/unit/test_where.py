"""A condition keeps what it says, runs nothing, and shows where it was not understood."""

import pytest

from modelhound.errors import RequestError, UnknownModelError
from modelhound.models import SOURCES, ModelCard, find_cards, find_models
from modelhound.models.where import parse_where

CARD = ModelCard(
    model="timm:resnet18",
    family="resnet",
    num_parameters=11_689_512,
    input_size=(224, 288),
    trained_on="a1_in1k",
    licence="apache-2.0",
)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("params < 30e6 and family == 'resnet'", True),
        ("params < 30e6 and family == 'vit'", False),
        ("params > 30e6 or input_size == 288", True),
        ("not (1e6 <= params < 20e6)", False),
        ("1e6 <= params < 20e6", True),
        ("1e6 <= params < 2e6", False),
        ("family in ('resnet', 'vit')", True),
        ("family not in ['resnet']", False),
        ("'18' in name", True),
        ("source != 'timm'", False),
        ("licence == 'apache-2.0' and trained_on == 'a1_in1k'", True),
        ("  params > 1  ", True),
    ],
)
def test_a_condition_means_what_it_says(condition: str, expected: bool) -> None:
    assert parse_where(condition)(CARD) is expected


@pytest.mark.parametrize(
    ("condition", "caret_below", "expected"),
    [
        ("params < ", "<", "expected a condition"),
        ("params < 5M", "5", "expected a condition, write 5e6 for 5M"),
        ("params < 1.5 k", "k", "write 1.5e3 for 1.5 k"),
        ("family = 'resnet'", "=", "expected a condition, write == for ="),
        ("family == resnet", "r", "there is no 'resnet', expected one of"),
        ("params << 3", "p", "comparisons joined by and, or, not"),
        ("parms < 3", "p", "did you mean params?"),
        ("family == 'é' and colour == 1", "c", "there is no 'colour', expected one of name"),
        ("params < 3 and __import__('os')", "_", "comparisons joined by"),
        ("'é' b", "b", "expected a condition"),
        ("params is 3", "p", "expected one of <"),
        ("(lambda: 1)() < 2", "(", "comparisons joined by"),
        ("family.x == 1", "f", "comparisons joined by"),
        ("", "", "expected a condition"),
    ],
)
def test_what_is_not_understood_is_pointed_at(condition: str, caret_below: str, expected: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_where(condition)
    first, shown, pointer = str(caught.value).split("\n")
    assert expected in first
    assert shown == f"  {condition.strip()}"
    assert caret_below in shown[max(0, pointer.index("^") - 2) : pointer.index("^") + 1]


def test_a_text_compared_with_a_number_is_explained() -> None:
    with pytest.raises(RequestError, match="downloads are numbers"):
        parse_where("family < 3")(CARD)


def test_a_condition_filters_what_patterns_found() -> None:
    found = find_models(["zoo:*"], where="family == 'vit' and params > 100e3")
    assert {model.name for model in found} == {"vit-glyphs", "vit-glyphs-garments_a", "vit-glyphs-textures"}


def test_a_condition_that_leaves_nothing_is_an_error() -> None:
    with pytest.raises(UnknownModelError, match="holds for none of"):
        find_models(["zoo:*"], where="params > 1e12")


def test_a_condition_is_decided_by_what_is_known_where_the_rest_makes_no_difference() -> None:
    known = {"model": "timm:resnet18", "family": "resnet", "input_size": (224, 224)}
    for condition, expected in (
        ("family == 'vit' and params < 30e6", False),
        ("params < 30e6 and family == 'vit'", False),
        ("family == 'resnet' or params < 30e6", True),
        ("family == 'resnet' and params < 30e6", None),
        ("not (params < 30e6)", None),
        ("not (params < 30e6 and '18' not in name)", True),
        ("1 < input_size < 100 < params", False),
        ("params in (1, 2)", None),
        ("1 in (params, 2)", None),
        ("modality == 'text' or downloads > 3", None),
    ):
        assert parse_where(condition).decide(known) is expected, condition


def test_only_models_that_are_still_in_question_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    described: list[str] = []
    source = SOURCES["timm"]

    class Watched:
        modalities = source.modalities
        find, glance = source.find, source.glance

        def describe(self, name: str) -> ModelCard:
            described.append(name)
            return source.describe(name)

    monkeypatch.setitem(SOURCES, "timm", Watched())
    patterns = ("timm:test_resnet", "timm:resnet18", "timm:test_vit")
    assert [str(each) for each in find_models(patterns, where="params < 1e6 and family == 'resnet'")] == [
        "timm:test_resnet"
    ]
    assert sorted(described) == ["resnet18", "test_resnet"]
    described.clear()
    (card,) = find_cards(patterns, where="'vit' in name")
    assert (card.model, described) == ("timm:test_vit", ["test_vit"])
    assert len(find_models(patterns, where="'t' in name")) == 3
    assert described == ["test_vit"], "what holds by its name needs no card"


def test_what_can_be_told_at_a_glance_is_what_the_card_says() -> None:
    for name in ("resnet18", "test_vit", "resnet50.a1_in1k", "regnety_002"):
        card = SOURCES["timm"].describe(name)
        facts = SOURCES["timm"].glance(name)
        assert facts == {each: getattr(card, each) for each in facts}
        assert set(facts) == {"family", "input_size", "trained_on", "licence"}
