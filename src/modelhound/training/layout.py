"""The order in memory that images and convolutions are trained in.

In:  a device
Out: a memory format
On a CPU it is the ordinary one: with several threads, oneDNN's backward pass over some networks in channels-last order ends the
process (seen with torch 2.13, a ResNet of 32 x 32 pixels; features are extracted in that order without trouble).
"""

import torch

__all__ = ["image_layout"]


def image_layout(device: str) -> torch.memory_format:
    """Channels last where convolutions like that best and survive it."""
    return torch.channels_last if device.startswith("cuda") else torch.contiguous_format
