"""A condition keeps what it says, runs nothing, and shows where it was not understood."""

import pytest

from modelhound.errors import RequestError, UnknownModelError
from modelhound.models import ModelCard, find_models
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
