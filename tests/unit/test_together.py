"""A race leaves nothing behind for the next one to stumble over, and nobody spoils it for the others."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import modelhound
from modelhound.measuring import together
from tiny_encoders import write_encoder


def test_the_first_session_is_gone_when_close_races_are_settled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_session, opened, alive = together.open_session, [], []

    def open_and_note(*arguments: Any) -> Any:
        session = open_session(*arguments)
        opened.append(weakref.ref(session))
        return session

    monkeypatch.setattr(together, "open_session", open_and_note)
    monkeypatch.setattr(together, "choose_dtype", lambda job: torch.bfloat16)
    monkeypatch.setattr(together, "settle_in_fp32", lambda *asked: alive.append(opened[0]() is not None))
    modelhound.search("digits", "zoo:resnet-glyphs", limit=40, run=tmp_path / "run", scorers="ridge")
    assert alive == [False]


def test_a_model_of_texts_among_those_of_images_fails_alone(tmp_path: Path) -> None:
    text_model = f"file:{write_encoder(tmp_path / 'encoder')}"
    result = modelhound.search(
        "digits", [text_model, "zoo:resnet-glyphs"], limit=40, run=tmp_path / "run", scorers="ridge"
    )
    assert [row.model for row in result.ranking.models] == ["zoo:resnet-glyphs"]
    (failure,) = result.failures
    assert failure.model == text_model
    assert failure.error == "cannot feed it images: expected texts, choose a model made for images"
