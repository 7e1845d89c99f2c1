"""Regressions done as one find what each finds alone; which minimum that is, tests/parity says."""

from types import SimpleNamespace
from typing import Any

import torch

from modelhound.scores.logistic import Regression, _kind, _most_together, _solve, prepare, regress


def make(seed: int, *, num_items: int = 120, num_columns: int = 6, num_outputs: int = 3) -> Regression:
    generator = torch.Generator().manual_seed(seed)
    places = torch.randint(num_outputs, (num_items,), generator=generator)
    inputs = torch.randn(num_items, num_columns, generator=generator) + 0.3 * seed * places[:, None]
    wide = inputs.double()
    return prepare(inputs, wide.T @ wide / num_items, num_outputs=num_outputs, places=places)


def test_regressions_done_as_one_find_what_each_finds_alone() -> None:
    problems = [make(seed) for seed in (0, 1, 2)]
    together = _solve(problems)
    for problem, found in zip(problems, together, strict=True):
        (alone,) = _solve([problem])
        torch.testing.assert_close(found, alone, rtol=1e-3, atol=1e-4)
        ((weights, intercepts),) = regress([problem])
        assert (weights.shape, intercepts.shape) == ((6, 3), (3,))


def test_regressions_of_several_kinds_come_back_in_the_order_they_were_given_in() -> None:
    problems = [make(0), make(1, num_columns=7), make(2, num_outputs=4), make(3), make(4, num_columns=7)]
    for problem, (weights, intercepts) in zip(problems, regress(problems), strict=True):
        ((alone, alone_intercepts),) = regress([problem])
        torch.testing.assert_close(weights, alone, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(intercepts, alone_intercepts, rtol=1e-3, atol=1e-4)


def test_the_slope_is_nearly_0_where_it_ends() -> None:
    problem = make(4)
    ((weights, intercepts),) = regress([problem])
    assert problem.places is not None
    weights, intercepts = weights.requires_grad_(), intercepts.requires_grad_()
    logits = problem.inputs.double() @ weights + intercepts
    loss = torch.nn.functional.cross_entropy(logits, problem.places)
    (loss + weights.square().sum() / (2 * len(logits))).backward()
    assert weights.grad is not None
    assert intercepts.grad is not None
    assert float(weights.grad.abs().max()) < 1e-3
    assert float(intercepts.grad.abs().max()) < 1e-3


def test_only_regressions_of_one_shape_are_done_as_one_and_no_more_than_memory_allows() -> None:
    assert _kind(make(0)) == _kind(make(1))
    assert _kind(make(0)) != _kind(make(0, num_columns=7))
    assert _kind(make(0)) != _kind(make(0, num_outputs=4))
    assert _most_together(make(0)) == 1  # on a CPU nothing is gained
    assert _most_together(_on_device(make(0))) == 16
    labels = [
        prepare(
            torch.ones(4, 2), torch.eye(2).double(), num_outputs=1, labels_of=lambda rows: torch.ones(1, 4)[:, rows]
        )
        for _ in range(2)
    ]
    assert _kind(labels[0]) != _kind(labels[1])
    many_rows = torch.empty(1, 1, device="meta").expand(10**6, 2048)
    large = Regression(inputs=many_rows, steer=many_rows[:2048], places=None, labels_of=None, num_outputs=2, ready=None)
    assert _most_together(_on_device(large)) == 1


def _on_device(problem: Regression) -> Any:
    """What tells the size of a problem, as if it lay on a GPU."""
    inputs = SimpleNamespace(is_cuda=True, shape=problem.inputs.shape)
    return SimpleNamespace(inputs=inputs, num_bytes=problem.num_bytes, num_components=problem.num_components)
