"""How tests feed networks that need not see much."""

from modelhound.data import Preprocessing

__all__ = ["FORM"]

FORM = Preprocessing(
    input_size=(16, 16),
    interpolation="bilinear",
    crop_fraction=1.0,
    crop_mode="center",
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
)
