"""What a CUDA device does for the first time takes a second or two; here it is done beside other work.

In:  a device
Out: nothing: libraries are loaded, decoders are tried, memory is pinned, and kernels that nearly every network calls are on
     the device
Nothing here knows a model or an item. What goes wrong here goes wrong again where it matters, and is told there.
"""

import contextlib
import threading
from collections.abc import Callable

import torch
from torch.nn import functional

from modelhound.data.decode.decoders import find_decoders
from modelhound.features.staging import staging_for

__all__ = ["warm_up"]

_SIDE, _CHANNELS = 56, 64


def warm_up(device: str) -> None:
    """Begin, in threads of their own, and come back at once; on a CPU there is nothing to do."""
    if device != "cpu":
        for work in (_call_kernels, find_decoders, staging_for):
            threading.Thread(target=_quietly, args=(work, device), name="warm up").start()


def _quietly(work: Callable[[str], object], device: str) -> None:
    with contextlib.suppress(Exception):
        work(device)


def _call_kernels(device: str) -> None:
    with torch.inference_mode(), torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        for layout in (torch.channels_last, torch.contiguous_format):
            images = torch.zeros(2, 3, 4 * _SIDE, 4 * _SIDE, device=device, dtype=torch.bfloat16).to(
                memory_format=layout
            )
            for side, stride, inputs in ((7, 2, 3), (4, 4, 3), (3, 1, _CHANNELS), (1, 1, _CHANNELS)):
                source = images if inputs == 3 else images.new_zeros(2, inputs, _SIDE, _SIDE).to(memory_format=layout)
                kernel = images.new_zeros(_CHANNELS, inputs, side, side).to(memory_format=layout)
                made = functional.conv2d(source, kernel, stride=stride, padding=side // 2)
            ones = images.new_ones(_CHANNELS)
            functional.relu(functional.batch_norm(made, ones, ones, ones, ones) + made).mean((2, 3))
        tokens = torch.zeros(2, 12, 197, 64, device=device, dtype=torch.bfloat16)
        functional.scaled_dot_product_attention(tokens, tokens, tokens)
        functional.gelu(functional.layer_norm(tokens @ tokens.transpose(2, 3), (197,)))
        torch.cuda.current_stream(device).synchronize()
