"""How convolutions are trained: the order of images in memory, and how the GPU finds its way of computing them.

In:  a device
Out: a memory format; a context to run steps in
Nothing here knows a network. On a CPU the order is the ordinary one: with several threads, oneDNN's backward pass over some
networks in channels-last order ends the process (seen with torch 2.13, a ResNet of 32 x 32 pixels; features are extracted in
that order without trouble).
"""

from contextlib import AbstractContextManager

import torch

__all__ = ["image_layout", "tuned_convolutions"]


def image_layout(device: str) -> torch.memory_format:
    """Channels last where convolutions like that best and survive it."""
    return torch.channels_last if device.startswith("cuda") else torch.contiguous_format


def tuned_convolutions() -> AbstractContextManager[None]:
    """Inside, cuDNN tries several ways of each convolution once and stays with the fastest; whatever is timed against training
    must run inside too."""
    context: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, benchmark=True)
    return context
