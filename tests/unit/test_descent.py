"""L-BFGS on functions whose minimum is known."""

import torch

from modelhound.scores.descent import descend


def test_the_minimum_of_a_stretched_bowl_is_found() -> None:
    stretch = torch.logspace(-2, 1, 40, dtype=torch.float64)
    target = torch.linspace(-3, 3, 40, dtype=torch.float64)

    def bowl(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gap = place - target
        return (stretch * gap.square()).sum(1) / 2, stretch * gap

    start = torch.zeros(1, 40, dtype=torch.float64)
    found = descend(bowl, start, most_steps=500, history=10, largest_slope=1e-9)
    torch.testing.assert_close(found[0], target, rtol=0, atol=1e-6)


def test_a_steep_start_is_backed_out_of() -> None:
    start = torch.tensor([[6.0, -6.0, 0.0]], dtype=torch.float64)
    found = descend(valley, start, most_steps=200, history=5, largest_slope=1e-10)
    torch.testing.assert_close(found[0], torch.full((3,), 2.0, dtype=torch.float64).log())
    assert start.tolist() == [[6.0, -6.0, 0.0]]


def test_several_problems_take_the_steps_that_each_would_take_alone() -> None:
    """One is backed out of, one is easy, and one has nothing to do: none of them changes what the others find."""
    starts = torch.tensor([[6.0, -6.0, 0.0], [0.6, 0.7, 0.8], [0.0, 0.0, 0.0]], dtype=torch.float64)
    starts[2] = torch.tensor(2.0, dtype=torch.float64).log()

    def find(start: torch.Tensor, most_steps: int) -> torch.Tensor:
        return descend(valley, start, most_steps=most_steps, history=3, largest_slope=1e-10)

    for most_steps in (1, 4, 200):
        together = find(starts, most_steps)
        alone = torch.cat([find(start[None], most_steps) for start in starts])
        torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-12)
    assert torch.equal(together[2], starts[2])


def test_it_stops_as_soon_as_the_slope_is_small_enough_and_after_the_steps_allowed() -> None:
    asked = []

    def bowl(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(place)
        scale = torch.tensor([1.0, 50.0], dtype=torch.float64)
        return (scale * place.square()).sum(1) / 2, scale * place

    start = torch.tensor([[1e-3, 0.0]], dtype=torch.float64)
    assert descend(bowl, start, most_steps=50, history=5, largest_slope=1e-2) is start
    assert len(asked) == 1
    asked.clear()
    descend(bowl, torch.tensor([[5.0, 5.0]], dtype=torch.float64), most_steps=1, history=5, largest_slope=0.0)
    assert 1 < len(asked) < 10


def test_a_value_that_is_no_number_is_never_taken_for_a_lower_one() -> None:
    def cliff(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.where(place[:, 0] > 1, torch.nan, -place[:, 0]), torch.full_like(place, -1.0)

    found = descend(cliff, torch.zeros(1, 1, dtype=torch.float64), most_steps=50, history=3, largest_slope=1e-9)
    assert 0.5 < float(found) <= 1


def valley(place: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return place.exp().sum(1) - 2 * place.sum(1), place.exp() - 2
