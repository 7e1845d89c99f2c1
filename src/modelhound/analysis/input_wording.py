"""What items are made into for a network, as a person would name it.

In:  the labels that a plan gives its inputs
Out: a few words for each, with what tells it from the others
Nothing here makes an input, and labels of another kind are left as they are.
"""

import re
from collections.abc import Iterable

__all__ = ["input_texts"]

_TOKENS = re.compile(r"data ([0-9a-f]{40,}) (\d+)")  # the hash of a tokenizer, and where texts are cut
_OWN_TRANSFORM = re.compile(r"OwnTransform\(.*input_size=\((\d+), (\d+)\)")
_PIXELS = re.compile(
    r"Preprocessing\(input_size=\((\d+), (\d+)\), interpolation='(\w+)', crop_fraction=([^,]+), crop_mode='(\w+)', "
    r"mean=\(([^)]*)\), std=\(([^)]*)\)\)"
)
_SHOWN_OF_HASH = 8


def input_texts(labels: Iterable[str]) -> dict[str, str]:
    """By label; of inputs that would read the same, each with the details in which they differ."""
    told = {label: _describe(label) for label in labels}
    alike: dict[str, list[str]] = {}
    for label, (text, _) in told.items():
        alike.setdefault(text, []).append(label)
    texts = {}
    for text, same in alike.items():
        details = [told[label][1] for label in same]
        differing = [place for place, values in enumerate(zip(*details, strict=True)) if len(set(values)) > 1]
        for number, (label, own) in enumerate(zip(same, details, strict=True), start=1):
            apart = [own[place] for place in differing] or ([f"number {number}"] if len(same) > 1 else [])
            texts[label] = ", ".join((text, *apart))
    return texts


def _describe(label: str) -> tuple[str, tuple[str, ...]]:
    """What everybody wants to know, and details that only matter where others have the same; as many of each kind."""
    if found := _TOKENS.fullmatch(label):
        return f"texts of up to {found[2]} tokens", (f"tokenizer {found[1][:_SHOWN_OF_HASH]}",)
    if found := _OWN_TRANSFORM.search(label):
        return f"images of {found[1]} x {found[2]}, a transform of their own", ()
    if found := _PIXELS.search(label):
        height, width, interpolation, crop, mode, mean, std = found.groups()
        details = (
            f"{float(crop):.4g} of the side kept",
            f"crop {mode}",
            f"mean {_once(mean)}",
            f"deviation {_once(std)}",
        )
        return f"images of {height} x {width}, {interpolation}", details
    return label, ()


def _once(numbers: str) -> str:
    """0.5 of three colours that have the same, 0.485 0.456 0.406 of others."""
    shown = [f"{float(number):.3g}" for number in numbers.split(",") if number.strip()]
    return shown[0] if len(set(shown)) == 1 else " ".join(shown)
