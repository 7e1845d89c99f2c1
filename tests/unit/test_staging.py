"""Tensors brought together are those that each would be by itself."""

import threading

import pytest
import torch
from torch import nn

from modelhound.features.staging import Staging
from modelhound.features.workshop import _move
from modelhound.models.parts import all_tensors

SHAPES = ((), (1,), (7,), (3, 5), (0, 4), (4, 3, 3, 3), (8, 4, 1, 1), (100,))


def make(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (10 * torch.randn(shape)).to(dtype)


@pytest.mark.parametrize("piece_bytes", [64, 1000, 1 << 20])
def test_every_tensor_has_its_numbers_in_the_type_and_order_that_is_wanted(piece_bytes: int) -> None:
    """Pieces that hold nothing but the smallest, some, and all of them."""
    torch.manual_seed(0)
    kinds = (torch.float32, torch.int64, torch.float64, torch.bool, torch.bfloat16)
    tensors = [make(shape, dtype) for dtype in kinds for shape in SHAPES]
    tensors += [torch.randn(6, 4).T, torch.randn(2, 4, 5, 3).permute(0, 3, 1, 2)]  # none lies in order
    wanted = [tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in tensors]
    wanted = [each.to(memory_format=torch.channels_last) if each.ndim == 4 else each for each in wanted]
    made = Staging("cpu", piece_bytes=piece_bytes).bring(tensors, [each.to("meta") for each in wanted])
    for tensor, expected in zip(made, wanted, strict=True):
        assert (tensor.dtype, tensor.stride()) == (expected.dtype, expected.stride())
        assert torch.equal(tensor, expected)


def test_what_was_brought_stays_when_others_are_brought_by_several_threads() -> None:
    staging = Staging("cpu", piece_bytes=256)
    made: dict[int, list[torch.Tensor]] = {}

    def bring(number: int) -> None:
        tensors = [torch.full((10,), float(number)) for _ in range(20)]
        made[number] = staging.bring(tensors, [tensor.to("meta") for tensor in tensors])

    threads = [threading.Thread(target=bring, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(bool((tensor == number).all()) for number, tensors in made.items() for tensor in tensors)
    assert len(made) == 8


def test_a_module_is_moved_as_torch_would_do_it_and_given_tensors_stay_where_they_are() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(5, 5), nn.Linear(5, 5))
    module[3].weight = module[2].weight  # one parameter with two names
    before = {name: tensor.detach().clone() for name, tensor in all_tensors(module)}
    statistics = module[1].running_mean
    assert isinstance(statistics, torch.Tensor)
    _move(module, "cpu", torch.bfloat16)
    for name, tensor in all_tensors(module):
        kind = torch.bfloat16 if before[name].is_floating_point() else torch.int64
        assert tensor.dtype == kind, name
        assert torch.equal(tensor, before[name].to(kind)), name
    assert module[3].weight is module[2].weight
    assert statistics.dtype == torch.float32  # whoever lent it still has it
