"""Tiny networks for tests of finals: one that suits brightness and colour, others that see less, and some that break.

A class of `coloured` items is a colour; `sharp` and `twin` see colours at once, `dull` and `dim` brightness only, `blind` sees
nothing, `exploding` gives a loss that is no number as soon as it learns and `spoiled` one as soon as it has learned.
"""

from pathlib import Path

import numpy as np
from PIL import Image

CODE = '''
import torch
from torch import nn

FORM = {"input_size": 8, "mean": (0.5,) * 3, "std": (0.25,) * 3, "crop_pct": 1.0, "interpolation": "bilinear"}


class Eye(nn.Module):
    """Averages the image, mixes its colours by fixed weights, and adds a layer that learns."""

    def __init__(self, weights, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.register_buffer("mix", torch.tensor(weights))
        self.learn = nn.Linear(3, 8)

    def forward(self, images):
        return 20 * torch.tanh(self.learn(images.mean((2, 3)) @ self.mix.T))  # large, so that a head learns fast


class Exploding(Eye):
    def forward(self, images):
        seen = super().forward(images)
        return seen * torch.inf if self.training else seen


def sharp():
    return Eye([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]], 0), FORM


def twin():
    return Eye([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]], 6), FORM


def dull():
    return Eye([[0.5, 0.5, 0.5]] * 3, 1), FORM


def dim():
    return Eye([[0.2, 0.2, 0.2]] * 3, 2), FORM


def blind():
    return Eye([[0.0, 0.0, 0.0]] * 3, 3), FORM


class Spoiled(Eye):
    learned = False

    def train(self, mode=True):
        self.learned = self.learned or mode
        return super().train(mode)

    def forward(self, images):
        seen = super().forward(images)
        return seen * torch.inf if self.learned and not self.training else seen


def spoiled():
    return Spoiled([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]], 5), FORM


def exploding():
    return Exploding([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 3.0]], 4), FORM
'''

COLOURS = {"red": (190, 90, 90), "green": (90, 190, 90), "blue": (90, 90, 190)}


def write_networks(folder: Path) -> dict[str, str]:
    """Name -> reference; under a file name of its own, since modules are imported once per process."""
    parts = [part.replace("-", "_") for part in folder.parts[-2:]]
    file = folder / f"networks_{'_'.join(parts)}.py"
    file.write_text(CODE)
    return {name: f"py:{file}:{name}" for name in ("sharp", "twin", "dull", "dim", "blind", "exploding", "spoiled")}


def write_coloured(folder: Path, *, per_class: int = 20, noise: float = 40.0, shuffled: bool = False) -> Path:
    """A folder of noisy plain images, one colour per class; `shuffled`, the classes mean nothing."""
    generator = np.random.default_rng(0)
    names = [name for name in COLOURS for _ in range(per_class)]
    kinds = generator.permutation(names).tolist() if shuffled else names
    for place, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        shade = np.array(COLOURS[name]) + generator.normal(0, noise, 3)
        image = shade + generator.normal(0, 20, (8, 8, 3))
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / kind / f"{place:03}.png")
    return folder
