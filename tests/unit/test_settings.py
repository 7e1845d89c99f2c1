"""Settings are checked when they are made, have one form, and know nothing of the machine."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from modelhound.errors import RequestError
from modelhound.settings import (
    BreakevenSettings,
    LatencySettings,
    LoaderSearchSettings,
    PrepareSettings,
    ProfileSettings,
    SearchSettings,
    TrainSettings,
    split_list,
)
from modelhound.settings.checks import make_settings


def test_a_list_may_be_written_with_commas_or_repeated() -> None:
    assert split_list("a,b") == split_list(("a", "b")) == split_list(["a, b", "a"]) == ("a", "b")


def test_settings_from_text_and_from_python_are_the_same_object() -> None:
    from_text = SearchSettings("digits", models=("zoo:a,zoo:b",), run="out")  # type: ignore[arg-type]
    assert from_text == SearchSettings("digits", models=("zoo:a", "zoo:b"), run=Path("out"))


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("limit", 3, "at least 4"),
        ("top", 0, "at least 1"),
        ("batch", 0, "at least 1"),
        ("workers", -1, "at least 0"),
        ("seed", -1, "at least 0"),
        ("seed", 10**20, "below 4294967296"),
        ("limit", 40.5, "whole number"),
        ("limit", "40", "whole number"),
        ("device", None, "expected text"),
        ("scorers", ("best",), "one of auto, ridge"),
        ("scorers", (), "one or more of auto, ridge"),
        ("weights", "none", "pretrained, random"),
        ("models", (), "at least one reference"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_with_what_is_allowed(name: str, value: object, expected: str) -> None:
    with pytest.raises(RequestError, match=expected):
        SearchSettings("digits", **{name: value})  # type: ignore[arg-type]


def test_a_name_given_twice_is_refused_because_one_of_them_would_change_nothing() -> None:
    with pytest.raises(RequestError, match="cannot use text twice in --columns"):
        SearchSettings("x.csv", columns=("text=a", "label=c", "text=b"))
    with pytest.raises(RequestError, match="cannot use epochs twice in --assume"):
        BreakevenSettings("digits", assume=("epochs=20", "epochs=30"))
    with pytest.raises(RequestError, match="cannot use sets twice in --scenario"):
        BreakevenSettings("digits", scenario=("epochs=20", "sets=2", "sets=3"))


@pytest.mark.parametrize("data", ["", "caf\udce9"])
def test_a_data_reference_must_be_text(data: str) -> None:
    with pytest.raises(RequestError, match=r"cannot (use --data|open data)"):
        SearchSettings(data)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        SearchSettings("digits").limit = 5  # type: ignore[misc]


@pytest.mark.parametrize("module", ["modelhound", "modelhound.settings", "modelhound.cli", "modelhound.store"])
def test_importing_does_not_load_torch(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "options",
    [
        {"plain": True, "memory": "4GB"},
        {"plain": True, "precision": "bf16"},
        {"plain": True, "risk": 0.1},
        {"exhaustive": True, "risk": 0.1},
    ],
)
def test_options_that_would_do_nothing_together_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="cannot use --"):
        SearchSettings("digits", **options)


@pytest.mark.parametrize(
    ("text", "expected"), [("4GB", 4 * 10**9), ("512 MiB", 2**29), ("1e6", 10**6), ("0.5k", 500), ("8gib", 2**33)]
)
def test_sizes_are_written_as_people_write_them(text: str, expected: int) -> None:
    assert SearchSettings("digits", memory=text).memory_bytes() == expected


@pytest.mark.parametrize("text", ["", "lots", "-1GB", "0", "4 apples", "1.2.3GB", "1e400", "1e17kB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="expected a size such as 4GB"):
        SearchSettings("digits", memory=text)


_COUNTS: list[tuple[type, str]] = [
    (BreakevenSettings, "sizes"),
    (BreakevenSettings, "counts"),
    (LatencySettings, "batch"),
    (LoaderSearchSettings, "batch"),
    (LoaderSearchSettings, "workers"),
    (ProfileSettings, "classes"),
    (ProfileSettings, "items"),
    (TrainSettings, "ranks"),
]


@pytest.mark.parametrize("given", ["many", "-1", "1.5", "9" * 5000, "\u0661", True, 2.5, ["8", "x"]])
@pytest.mark.parametrize(("settings", "name"), _COUNTS)
def test_what_is_no_list_of_whole_numbers_is_refused_the_same_way_everywhere(
    settings: type, name: str, given: object
) -> None:
    data = () if settings is LatencySettings else ("digits",)
    with pytest.raises(
        RequestError, match=f"cannot use --{name} .*: expected .*whole numbers from .* to .*, such as"
    ) as refused:
        settings(*data, **{name: given})
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("given", ["16,8", (16, 8), [16, "8"], ("16,8", 8)])
@pytest.mark.parametrize(("settings", "name"), _COUNTS)
def test_a_list_of_whole_numbers_may_be_texts_or_numbers(settings: type, name: str, given: object) -> None:
    data = () if settings is LatencySettings else ("digits",)
    made = getattr(settings(*data, **{name: given}), name)
    assert sorted(map(int, made)) == [8, 16]


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        (ProfileSettings, {"batch": "9" * 5000}),
        (ProfileSettings, {"heads": "9" * 5000}),
        (ProfileSettings, {"parts": "9" * 5000}),
        (BreakevenSettings, {"assume": f"items={'9' * 400}"}),
        (BreakevenSettings, {"price_per_hour": True}),
        (SearchSettings, {"finals": "auto", "finals_budget": "9" * 400 + "s"}),
        (SearchSettings, {"models": 5}),
    ],
)
def test_a_number_that_no_machine_holds_is_refused_in_a_sentence(settings: type, options: dict[str, object]) -> None:
    with pytest.raises(RequestError, match=r"cannot (use|run)"):
        settings("digits", **options)


@pytest.mark.parametrize(
    "settings",
    [
        BreakevenSettings,
        LatencySettings,
        LoaderSearchSettings,
        PrepareSettings,
        ProfileSettings,
        SearchSettings,
        TrainSettings,
    ],
)
def test_every_field_of_a_verbs_settings_can_be_given_by_name_in_python(settings: type) -> None:
    """`loader(kind=...)` once met a parameter of our own that had the same name."""
    fields = dataclasses.fields(settings)
    inspect.signature(make_settings).bind(settings, "try", **{field.name: field.default for field in fields})
