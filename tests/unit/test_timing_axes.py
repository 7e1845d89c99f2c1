"""Which points a sweep has, what it refuses, and that their order favours nobody."""

import pytest
from msgspec import to_builtins

from modelhound.errors import RequestError
from modelhound.records import Cost, LatencyPoint
from modelhound.settings import LatencySettings
from modelhound.store import Memo
from modelhound.timing.axes import Candidate, describe_base, list_points, shuffle_points, sizes_of, too_long
from modelhound.timing.planning import _recall

PHOTOS = Candidate(model="tv:resnet18", modality="image", own_size=224)
TEXTS = Candidate(model="hf:bert", modality="text", own_size=128, max_tokens=512)


def points_of(candidates: tuple[Candidate, ...], device: str = "cpu", **options: object) -> list[LatencyPoint]:
    settings = LatencySettings(**options)  # type: ignore[arg-type]
    return list_points(candidates, settings, precisions={device: ("fp32",)})


def test_axes_that_are_named_are_combined() -> None:
    points = points_of((PHOTOS,), batch=(1, 2, 4), image=(64, 96))
    assert {(point.batch, point.image) for point in points} == {(b, s) for b in (1, 2, 4) for s in (64, 96)}
    assert all(point.tokens is None for point in points)


def test_an_axis_that_is_not_named_stays_as_it_is() -> None:
    photos, texts = points_of((PHOTOS, TEXTS), image=(96,))
    assert (photos.batch, photos.image) == (1, 96)
    assert (texts.batch, texts.tokens) == (1, 128)


def test_without_any_each_axis_is_swept_by_itself() -> None:
    points = points_of((PHOTOS,))
    batches = {point.batch for point in points if point.image == 224}
    sides = {point.image for point in points if point.batch == 1}
    assert len(batches) >= 5
    assert len(sides) >= 5
    assert len(points) == len(batches) + len(sides) - 1


def test_on_a_gpu_sizes_are_swept_at_a_batch_that_fills_it_too() -> None:
    points = points_of((TEXTS,), device="cuda:0")
    lines = {batch: {p.tokens for p in points if p.batch == batch} for batch in (1, 32)}
    assert lines[1] == lines[32] == {16, 32, 64, 128, 256, 512}


def test_a_longer_model_gets_longer_texts() -> None:
    longer = Candidate(model="hf:longformer", modality="text", own_size=128, max_tokens=4096)
    assert max(sizes_of(points_of((longer,), device="cuda:0"), "hf:longformer")) == 4096


def test_texts_longer_than_a_model_takes_are_refused_with_what_it_takes() -> None:
    with pytest.raises(RequestError, match=r"hf:bert at 513 tokens: expected at most 512"):
        points_of((TEXTS,), sequence=(16, 513))


def test_a_length_that_one_model_of_several_takes_is_timed_with_that_one() -> None:
    longer = Candidate(model="hf:longformer", modality="text", own_size=128, max_tokens=4096)
    points = points_of((TEXTS, longer), sequence=(16, 600))
    assert {(point.model, point.tokens) for point in points} == {
        *(("hf:bert", 16), ("hf:longformer", 16), ("hf:longformer", 600)),
    }
    ((model, length, why),) = too_long((TEXTS, longer), LatencySettings(sequence=(16, 600)))
    assert (model, length) == ("hf:bert", 600)
    assert "at most 512" in why


@pytest.mark.parametrize(("candidate", "axis"), [(PHOTOS, "sequence"), (TEXTS, "image")])
def test_an_axis_that_no_model_has_is_refused(candidate: Candidate, axis: str) -> None:
    with pytest.raises(RequestError, match=f"cannot use --{axis}"):
        points_of((candidate,), **{axis: (64,)})


def test_two_small_points_of_every_network_come_first_and_the_rest_at_random() -> None:
    points = points_of((PHOTOS, TEXTS), batch=(1, 2, 4, 8, 16, 32))
    order = shuffle_points(points, lambda point: point.batch, seed=1)
    assert sorted(map(repr, order)) == sorted(map(repr, points))
    assert {point.batch for point in order[:4]} == {1, 2}
    assert order == shuffle_points(points, lambda point: point.batch, seed=1)
    assert order != shuffle_points(points, lambda point: point.batch, seed=2)
    assert order[4:] != sorted(order[4:], key=lambda point: point.batch)


def test_the_size_that_stays_is_the_models_own() -> None:
    assert describe_base("image", 299, None) == 299
    assert describe_base("text", None, 64) == 64
    assert describe_base("text", None, 4096) == 128


def test_a_cost_that_was_kept_in_another_form_is_found_out_anew() -> None:
    whole = Cost(
        flops=1.0,
        activation_bytes=2.0,
        moved_bytes=3.0,
        live_bytes=4.0,
        input_bytes=5.0,
        weight_bytes=6.0,
        num_kernels=7,
        num_parameters=8,
        operators=(),
    )
    memo = Memo("costs-of-models")
    memo.note("zoo:some 32", {"flops": "many"})
    memo.note("zoo:some 64", to_builtins(whole))
    candidate = Candidate(model="zoo:some", modality="image", own_size=32)
    assert _recall(memo, candidate, (32, 64, 96), LatencySettings(models=("zoo:some",))) == {64: whole}
