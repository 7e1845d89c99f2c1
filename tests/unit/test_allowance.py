"""What a search on a CPU may take, and what it says where that is too little."""

import dataclasses
import re
from pathlib import Path

import pytest
import torch

from modelhound.data import open_dataset
from modelhound.errors import RequestError
from modelhound.features import allowance
from modelhound.features.allowance import Allowance, beside_bytes, building_bytes, plan_bytes
from modelhound.features.many import Session
from modelhound.features.shelf import copied_bytes
from modelhound.features.workshop import Specimen
from modelhound.models import find_models
from modelhound.settings import ModelSettings
from tiny_encoders import write_encoder, write_timm


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_timm(tmp_path / "net")


def survey(data: str, model: str, memory_bytes: int | None = None) -> Session:
    session = Session(
        open_dataset(data, limit=20),
        ModelSettings(),
        seed=0,
        device="cpu",
        remember=False,
        memory_bytes=memory_bytes,
    )
    session.survey(dict.fromkeys(find_models([model]), ""), failed=fail)
    return session


def fail(model: str, phase: str, error: Exception) -> None:
    raise AssertionError(f"{model} in {phase}") from error


def only(session: Session) -> Specimen:
    (specimen,) = session.specimens.values()
    return specimen


def test_weights_that_lie_in_a_file_as_they_are_wanted_take_no_memory(tmp_path: Path) -> None:
    write_encoder(tmp_path / "bert", "bert")
    with survey("sms", f"file:{tmp_path / 'bert'}") as session:
        specimen = only(session)
        assert sum(specimen.blueprint.part_bytes) > 0
        assert copied_bytes(specimen, specimen.blueprint.used) == 0


def test_kernels_larger_than_a_pixel_are_put_into_another_order_and_do(folder: Path) -> None:
    with survey("digits", f"file:{folder}") as session:
        specimen = only(session)
        kernels = {
            name: tensor.nbytes
            for name, tensor in specimen.blueprint.templates.items()
            if name in specimen.blueprint.used and tensor.ndim == 4 and tensor.shape[1] > 1 and tensor.shape[2] > 1
        }
        assert copied_bytes(specimen, specimen.blueprint.used) == sum(kernels.values()) > 0
        assert building_bytes([specimen]) == sum(kernels.values())
        small = [name for name in specimen.blueprint.used if name not in kernels]
        for name, tensor in session._shelf.fetch(specimen, small).items():
            assert tensor.data_ptr() == specimen.tensors[name].data_ptr()
            assert torch.equal(tensor, specimen.tensors[name])


def test_too_little_memory_is_refused_with_what_would_do_and_which_weights_are_in_the_way(folder: Path) -> None:
    with survey("digits", f"file:{folder}", memory_bytes=60_000_000) as session:
        with pytest.raises(RequestError, match="expected at least") as told:
            session.planner.plan(list(session.specimens), range(20))
        (needed,) = re.findall(r"expected at least \d+MB \(([\d,]+) bytes\)", str(told.value))
    assert str(folder) in str(told.value)
    with survey("digits", f"file:{folder}", memory_bytes=int(needed.replace(",", ""))) as session:
        assert session.planner.plan(list(session.specimens), range(20)).num_items == 20


def test_what_is_left_for_a_plan_is_never_negative(folder: Path) -> None:
    with survey("digits", f"file:{folder}") as session:
        beside = beside_bytes([only(session)], num_items=20, num_classes=10)
    assert plan_bytes(10, beside) == 1
    assert plan_bytes(2 * beside, beside) < beside


def test_the_parts_of_a_module_that_was_left_without_weights_can_be_timed(folder: Path) -> None:
    with survey("digits", f"file:{folder}", memory_bytes=500_000_000) as session:
        session.calibrate(failed=fail)
        specimen = only(session)
        assert set(session.planner.part_seconds) == set(specimen.fingerprints)
        assert all(seconds > 0 for seconds in session.planner.part_seconds.values())
        assert all(slot.numel() == 0 for slot in specimen.blueprint.slots.values())


def test_freed_memory_goes_back_before_the_limit_is_reached_and_not_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    held, given_back = [100], []
    monkeypatch.setattr(allowance, "process_bytes", lambda name: held[0])
    monkeypatch.setattr(allowance, "give_back_freed_memory", lambda: given_back.append(held[0]))
    allowed = Allowance(1000)
    held[0] = 900  # of which 100 were there before
    allowed.tidy(0)
    assert not given_back
    allowed.tidy(100)
    held[0] = 1000
    allowed.tidy(0)
    assert given_back == [900, 1000]


def test_weights_in_no_file_count_for_every_model_and_those_of_a_file_do_not(folder: Path) -> None:
    with survey("digits", f"file:{folder}") as session:
        mapped = only(session)
    drawn = dataclasses.replace(mapped, is_mapped=False)
    counted = [beside_bytes(each, num_items=20, num_classes=10) for each in ([mapped], [drawn], [drawn, drawn])]
    assert counted[1] - counted[0] == counted[2] - counted[1] == sum(mapped.blueprint.part_bytes) > 0
