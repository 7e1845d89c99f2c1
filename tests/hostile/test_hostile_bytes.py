"""Bytes from strangers, whole and broken: read, or refused in a sentence; never anything else."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from fault_log import FAULT_SEED, note_fault, wanted
from hostile_parsers import PARSERS, feed

NUM_INPUTS = wanted("HOUND_NUM_INPUTS", 12)
"""Per parser; `make test-faults` sets many more."""

EXTREMES = (
    b"\xff" * 8,
    bytes(8),
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\x7f",
    b"9" * 30,
    b"\\u0000",
    b"\xed\xa0\x80",
    b"../",
    b"[" * 3000,
)


@st.composite
def broken(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """A good input with a few pieces replaced, cut out, doubled or swapped for values at the edge."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(data)))
        stop = min(len(data), start + draw(st.sampled_from((0, 1, 2, 4, 8, 64, 4096))))
        piece = draw(
            st.one_of(st.just(b""), st.binary(max_size=8), st.sampled_from(EXTREMES), st.just(data[start:stop] * 2))
        )
        data = data[:start] + piece + data[stop:]
    return data


@pytest.mark.parametrize("name", PARSERS)
def test_a_good_input_is_read(name: str, tmp_path: Path) -> None:
    """Or else all the others would be refused for the wrong reason."""
    assert feed(name, PARSERS[name].seeds[0], tmp_path) == ""


@pytest.mark.parametrize("name", PARSERS)
def test_whatever_is_fed_is_read_or_refused_in_a_sentence(name: str) -> None:
    num_tried = num_survived = 0
    inputs = st.one_of(broken(tuple(PARSERS[name].seeds)), broken(tuple(PARSERS[name].seeds)), st.binary(max_size=200))

    @settings(
        max_examples=max(2, NUM_INPUTS // 20) if PARSERS[name].dear else NUM_INPUTS,
        deadline=None,
        database=None,
        derandomize=NUM_INPUTS < 100,
        suppress_health_check=list(HealthCheck),
    )
    @seed(FAULT_SEED)
    @given(inputs)
    def try_one(data: bytes) -> None:
        nonlocal num_tried, num_survived
        num_tried += 1
        with tempfile.TemporaryDirectory() as folder:
            feed(name, data, Path(folder))
        num_survived += 1

    try:
        try_one()
    finally:
        note_fault("bytes, broken by chance (hypothesis)", name, tried=num_tried, survived=num_survived)
