"""The items as the best model sees them, for people to look at.

In:  the features of one model, the data set, and what all models made of each item
Out: an ItemMap: every item a dot (at most MOST_ITEMS of them), the hardest with their picture or the beginning of their text
Nothing here runs a model. An item that cannot be read any more is left without its picture: this is for looking only.
"""

import contextlib
import io
from collections.abc import Sequence

import numpy as np
from PIL import Image

from modelhound.analysis.item_map import MAP_METHOD, MOST_ITEMS, hardest_items, main_directions
from modelhound.data import Dataset
from modelhound.errors import HoundError
from modelhound.records import HardItem, ItemMap, ModelMeasured, pack_items, unpack_items

__all__ = ["look_at_items"]

_NUM_HARDEST = 24
_PICTURE_SIDE = 112  # pixels
_SMALL_PIXELS = 64 * 64  # pictures up to this size are kept without loss: every pixel is seen
_TEXT_CHARACTERS = 180


def look_at_items(
    features: np.ndarray,
    dataset: Dataset,
    best: ModelMeasured,
    measured: Sequence[ModelMeasured],
    *,
    scorer: str,
) -> ItemMap:
    """The map of `dataset` by the features [items, features] of `best`; hard is what `scorer` says the model misses."""
    scores = [unpack_items(each.item_scores[scorer]) for each in measured if scorer in each.item_scores]
    hardness, hardest = hardest_items(unpack_items(best.item_scores[scorer]), scores, num_hardest=_NUM_HARDEST)
    shown = _choose(len(dataset), hardest)
    places = {int(position): place for place, position in enumerate(shown)}
    directions = main_directions(np.asarray(features, dtype=np.float32)[shown])
    targets, class_names = _tell_targets(dataset)
    right = np.stack(scores)[:, hardest].mean(axis=0) if dataset.task == "classification" else None
    return ItemMap(
        model=best.model,
        method=MAP_METHOD,
        features=pack_items(directions.ravel()),
        num_features=directions.shape[1],
        targets=pack_items(targets[shown]),
        class_names=class_names,
        hardness=pack_items(hardness[shown]),
        items=tuple(dataset.item_names[position] for position in shown),
        hardest=tuple(
            _show_item(
                dataset,
                int(position),
                place=places[int(position)],
                target=class_names[int(targets[position])] if class_names else f"{targets[position]:.4g}",
                hardness=float(hardness[position]),
                right_share=None if right is None else float(right[rank]),
            )
            for rank, position in enumerate(hardest)
        ),
    )


def _choose(num_items: int, hardest: np.ndarray) -> np.ndarray:
    """All items, or as many as a map holds: the hardest, and others at even distances."""
    if num_items <= MOST_ITEMS:
        return np.arange(num_items)
    others = np.setdiff1d(np.linspace(0, num_items - 1, MOST_ITEMS).round().astype(int), hardest)
    kept = others[np.linspace(0, len(others) - 1, MOST_ITEMS - len(hardest)).round().astype(int)]
    return np.union1d(kept, hardest)


def _tell_targets(dataset: Dataset) -> tuple[np.ndarray, tuple[str, ...]]:
    """One number per item, and what it stands for; of several labels, their combination."""
    if dataset.task == "regression":
        return dataset.targets.astype(np.float64), ()
    if dataset.task == "classification":
        return dataset.targets.astype(np.float64), dataset.class_names
    texts = [
        ", ".join(name for name, is_set in zip(dataset.class_names, row, strict=True) if is_set) or "none"
        for row in dataset.targets
    ]
    names = tuple(sorted(set(texts)))
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[text] for text in texts], dtype=np.float64), names


def _show_item(
    dataset: Dataset, position: int, *, place: int, target: str, hardness: float, right_share: float | None
) -> HardItem:
    picture, picture_type, text = b"", "image/png", ""
    with contextlib.suppress(HoundError, OSError):
        item = dataset.read(position)
        if isinstance(item, tuple):
            whole = " / ".join(item)
            text = whole if len(whole) <= _TEXT_CHARACTERS else f"{whole[:_TEXT_CHARACTERS]}…"
        else:
            picture, picture_type = _shrink(item)
    return HardItem(
        item=dataset.item_names[position],
        position=place,
        target=target,
        hardness=hardness,
        right_share=right_share,
        text=text,
        picture=picture,
        picture_type=picture_type,
    )


def _shrink(image: Image.Image) -> tuple[bytes, str]:
    """A small file of it, and of which type."""
    small = image.convert("RGB")
    small.thumbnail((_PICTURE_SIDE, _PICTURE_SIDE))
    content = io.BytesIO()
    if small.width * small.height <= _SMALL_PIXELS:
        small.save(content, "PNG", optimize=True)
        return content.getvalue(), "image/png"
    small.save(content, "JPEG", quality=82)
    return content.getvalue(), "image/jpeg"
