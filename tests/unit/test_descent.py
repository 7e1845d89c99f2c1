"""L-BFGS on functions whose minimum is known."""

import torch

from modelhound.scores.descent import descend


def test_the_minimum_of_a_stretched_bowl_is_found() -> None:
    stretch = torch.logspace(-2, 1, 40, dtype=torch.float64)
    target = torch.linspace(-3, 3, 40, dtype=torch.float64)

    def bowl(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gap = place - target
        return (stretch * gap.square()).sum() / 2, stretch * gap

    found = descend(bowl, torch.zeros(40, dtype=torch.float64), most_steps=500, history=10, largest_slope=1e-9)
    torch.testing.assert_close(found, target, rtol=0, atol=1e-6)


def test_a_steep_start_is_backed_out_of() -> None:
    def valley(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return place.exp().sum() - 2 * place.sum(), place.exp() - 2

    start = torch.tensor([6.0, -6.0, 0.0], dtype=torch.float64)
    found = descend(valley, start, most_steps=200, history=5, largest_slope=1e-10)
    torch.testing.assert_close(found, torch.full((3,), 2.0, dtype=torch.float64).log())
    assert start.tolist() == [6.0, -6.0, 0.0]


def test_it_stops_as_soon_as_the_slope_is_small_enough_and_after_the_steps_allowed() -> None:
    asked = []

    def bowl(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(place)
        scale = torch.tensor([1.0, 50.0], dtype=torch.float64)
        return (scale * place.square()).sum() / 2, scale * place

    start = torch.tensor([1e-3, 0.0], dtype=torch.float64)
    assert descend(bowl, start, most_steps=50, history=5, largest_slope=1e-2) is start
    assert len(asked) == 1
    asked.clear()
    descend(bowl, torch.tensor([5.0, 5.0], dtype=torch.float64), most_steps=1, history=5, largest_slope=0.0)
    assert 1 < len(asked) < 10
