"""FLOPs, bytes and kernels of calls whose costs can be worked out by hand."""

import pytest
import torch
from torch import nn

from modelhound.timing.counting import count_call

FLOAT = 4


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_linear_layer_costs_two_flops_for_each_weight_and_item(device: str) -> None:
    layer = nn.Linear(32, 16, bias=False, device=device)
    items = torch.empty(5, 32, device=device)
    count = count_call(lambda: layer(items))
    assert count.flops == 2 * 5 * 32 * 16
    assert count.activation_bytes == 5 * 16 * FLOAT
    assert count.moved_bytes == (5 * 16 + 5 * 32 + 32 * 16) * FLOAT
    assert count.live_bytes == 5 * 16 * FLOAT
    assert count.num_kernels == 1


def test_a_convolution_costs_two_flops_for_each_weight_and_place() -> None:
    layer = nn.Conv2d(3, 8, 3, bias=False, device="meta")
    images = torch.empty(2, 3, 10, 10, device="meta")
    assert count_call(lambda: layer(images)).flops == 2 * (8 * 3 * 3 * 3) * (2 * 8 * 8)


def test_attention_is_one_operator_with_two_products() -> None:
    query = torch.empty(2, 4, 6, 8, device="meta")
    count = count_call(lambda: nn.functional.scaled_dot_product_attention(query, query, query))
    assert count.flops == 2 * (2 * 2 * 4 * 6 * 6 * 8)
    assert count.num_kernels == 1


def test_views_are_free() -> None:
    tensor = torch.empty(4, 6, device="meta")
    count = count_call(lambda: tensor.view(24).reshape(2, 12).transpose(0, 1)[1:].detach())
    assert (count.num_kernels, count.moved_bytes, count.activation_bytes) == (0, 0, 0)


def test_what_is_let_go_of_is_not_held_any_more() -> None:
    start = torch.empty(1000, device="meta")

    def chain() -> torch.Tensor:
        tensor = start
        for _ in range(10):
            tensor = tensor + 1
        return tensor

    count = count_call(chain)
    assert count.activation_bytes == 10 * 1000 * FLOAT
    assert count.live_bytes == 2 * 1000 * FLOAT


def test_an_operator_in_place_holds_nothing_new() -> None:
    start = torch.empty(1000, device="meta")
    count = count_call(lambda: (start + 1).relu_())
    assert (count.num_kernels, count.live_bytes) == (2, 1000 * FLOAT)


def test_a_question_about_values_is_answered_where_there_are_none() -> None:
    layer = nn.Linear(4, 4, device="meta")
    items = torch.empty(2, 4, device="meta")
    count = count_call(lambda: layer(items) if not bool((items > 0).any()) else items)
    assert count.flops == 2 * 2 * 4 * 4


def test_operators_tell_weights_from_what_grows_with_the_batch() -> None:
    layer = nn.Linear(32, 16, bias=False, device="meta")
    items = torch.empty(1, 32, device="meta")
    count = count_call(lambda: layer(items), layer.parameters())
    assert count.operators == (("product", 2.0 * 32 * 16, (32 + 16) * FLOAT, 32 * 16 * FLOAT, 1),)


def test_of_a_table_only_the_rows_that_are_looked_up_are_read() -> None:
    table = nn.Embedding(10_000, 8, device="meta")
    places = torch.zeros(1, 3, dtype=torch.long, device="meta")
    count = count_call(lambda: table(places), table.parameters())
    assert count.moved_bytes == 3 * 8 * FLOAT + 3 * 8


@pytest.mark.parametrize(("groups", "kind"), [(1, "convolution"), (4, "grouped"), (16, "depthwise")])
def test_convolutions_over_all_some_and_single_channels_are_told_apart(groups: int, kind: str) -> None:
    layer = nn.Conv2d(16, 16, 3, groups=groups, bias=False, device="meta")
    images = torch.empty(1, 16, 8, 8, device="meta")
    (operator,) = count_call(lambda: layer(images), layer.parameters()).operators
    assert operator[:2] == (kind, 2.0 * 6 * 6 * 16 * (16 // groups) * 9)


def test_attention_is_a_kind_of_its_own() -> None:
    query, key, value = (torch.empty(1, 2, 8, 4, device="meta") for _ in range(3))
    count = count_call(lambda: nn.functional.scaled_dot_product_attention(query, key, value))
    assert [operator[0] for operator in count.operators if operator[1]] == ["attention"]
