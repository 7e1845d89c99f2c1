"""An item that turns out to be broken is left out, and the command goes on by itself."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from modelhound import settings
from modelhound.data.beginning_anew import without_broken_items
from modelhound.errors import BrokenItemError
from modelhound.records import silent
from modelhound.store import open_run


def test_every_broken_item_is_left_out_and_one_that_stays_is_an_error() -> None:
    errors = [BrokenItemError("cannot read 'a'"), BrokenItemError("cannot read 'b'"), None]

    def do() -> str:
        if (error := errors.pop(0)) is not None:
            raise error
        return "done"

    assert without_broken_items(do, run=None, watch=silent) == "done"
    errors[:] = [BrokenItemError("cannot read 'a'")] * 2
    with pytest.raises(BrokenItemError):
        without_broken_items(do, run=None, watch=silent)


@pytest.mark.parametrize(
    ("verb", "inner", "asked"),
    [
        ("breakeven", "_breakeven", "BreakevenSettings"),
        ("loader", "_run_here", "LoaderSearchSettings"),
        ("profile", "_profile", "ProfileSettings"),
        ("search", "_search", "SearchSettings"),
        ("train", "_train", "TrainSettings"),
    ],
)
def test_every_verb_goes_on_in_the_same_folder_though_it_holds_other_items_then(
    verb: str, inner: str, asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = importlib.import_module(f"modelhound.verbs.{verb}")
    run = tmp_path / "run"
    fingerprints = ["with it", "without it"]

    def do(*given: Any) -> str:
        fingerprint = fingerprints.pop(0)
        with open_run(run, verb=verb, at="2026", settings={}, identity={"data_fingerprint": fingerprint}):
            if fingerprints:
                raise BrokenItemError("cannot read 'a.png'")
        return fingerprint

    monkeypatch.setattr(home, inner, do)
    options = {"model": ("zoo:resnet-shapes",)} if verb == "train" else {}
    assert getattr(home, f"run_{verb}")(getattr(settings, asked)("digits", run=run, **options)) == "without it"
