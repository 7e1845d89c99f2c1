"""What the engine does with what is lost, and how far it runs ahead."""

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from modelhound.features import engine
from modelhound.features.engine import _divide_weight_bytes, _Lost, run_plan
from modelhound.plan import Chain, Costs, Segment, Step, make_plan, peak_bytes
from modelhound.records import silent


class Output:
    """Stands for what a step has made."""


class ScriptedJob:
    """Runs steps that make nothing; some of them raise."""

    def __init__(self, lost: dict[int, tuple[str, ...]], num_models: int) -> None:
        self._lost, self._num_models = lost, num_models
        self._models_lost: set[str] = set()
        self.made: dict[int, weakref.ref[Output]] = {}
        self.alive: dict[int, list[int]] = {}
        """For each step, the steps whose outputs were there when it began."""
        self.num_opened = 0

    def __enter__(self) -> "ScriptedJob":
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to end."""

    def is_lost(self, index: int) -> bool:
        return index in self._lost and self._models_lost.issuperset(self._lost[index])

    def is_all_lost(self) -> bool:
        return len(self._models_lost) == self._num_models

    def open_feeds(self, number: int, chunk: range) -> dict[str, Any]:
        self.num_opened += 1
        return {"pixels": None}

    def run_step(self, index: int, feed: Any, source: Any) -> Any:
        self.alive[index] = [
            number for number, made in self.made.items() if made() is not None and made() is not source
        ]
        if index in self._lost:
            self._models_lost.update(self._lost[index])
            return _Lost(self._lost[index], "forward", ValueError("of all things"))
        output = Output()
        self.made[index] = weakref.ref(output)
        return output

    def collect(self, model: str, feed: Any, made: Any, *, is_last: bool) -> None:
        """Nothing to collect."""


def step(source: int | None, *finishes: str, frees: bool = False) -> Step:
    keep = "nothing" if finishes else "memory"
    return Step(source=source, input="pixels", segments=(), finishes=finishes, keep=keep, frees_source=frees)


def run(monkeypatch: pytest.MonkeyPatch, job: ScriptedJob, steps: list[Step], num_chunks: int = 1) -> list[str]:
    monkeypatch.setattr(engine, "_Job", lambda plan, request: job)
    plan: Any = SimpleNamespace(steps=steps, num_chunks=num_chunks, chunks=[range(2)] * num_chunks)
    request: Any = SimpleNamespace(watch=silent)
    failed: list[str] = []
    run_plan(plan, request, done=lambda model, rows: None, failed=lambda model, phase, error: failed.append(model))
    return failed


def test_a_step_that_is_lost_lets_go_of_what_it_was_the_last_to_take(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ScriptedJob({2: ("b",)}, num_models=3)
    steps = [step(None), step(0, "a"), step(0, "b", frees=True), step(None, "c"), step(None, "d")]
    assert run(monkeypatch, job, steps) == ["b"]
    assert 0 not in job.alive[3]
    assert 0 not in job.alive[4]


def test_when_all_are_lost_no_more_items_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    job = ScriptedJob({0: ("a",)}, num_models=1)
    assert run(monkeypatch, job, [step(None, "a")], num_chunks=5) == ["a"]
    assert job.num_opened == 1


def plan_within(memory_bytes: float) -> Any:
    """Three models that share nothing, each with a million bytes of weights."""
    costs = Costs(
        flops_per_second=1e9,
        weight_bytes_per_second=1e9,
        spill_bytes_per_second=0,
        decode_seconds_per_item=0.0,
        score_seconds=0.0,
        launch_seconds=0.0,
        batch_items=4,
        memory_bytes=memory_bytes,
    )
    chains = [
        Chain(
            model=name,
            input="pixels",
            input_bytes_per_item=10,
            segments=(
                Segment(
                    fingerprint=name,
                    flops_per_item=1e6,
                    output_bytes_per_item=10,
                    weight_bytes=1_000_000,
                    peak_bytes_per_item=30,
                ),
            ),
        )
        for name in ("a", "b", "c")
    ]
    return make_plan(chains, num_items=8, costs=costs)


def test_weights_of_a_step_that_a_device_is_still_at_have_room_or_nobody_runs_ahead() -> None:
    """The shelf may let go of them, but nobody else gets their memory before the step is through."""
    for memory_bytes in (1e7, 3.2e6, 2.2e6, 1.1e6):
        plan = plan_within(memory_bytes)
        shelf_bytes, most_begun = _divide_weight_bytes(plan, device="cuda:0", lean=False)
        beside = peak_bytes(plan) - (2 if plan.prefetch else 1) * 1_000_000 - 1_000_000 * len(plan.resident)
        assert beside + shelf_bytes + most_begun * 1_000_000 <= memory_bytes
        assert shelf_bytes >= 1_000_000
        assert most_begun == (memory_bytes - peak_bytes(plan) >= 1_000_000)
    assert _divide_weight_bytes(plan_within(1e7), device="cpu", lean=True)[1] == 0
