"""Which column of a table is the text, the pair, the image and the label.

In:  the columns with the values of the first rows, and the roles a person named by --columns
Out: Roles, or a DataError that lists the columns and shows what to type
Nothing here reads a file or looks at more than these rows.

What was named holds. The rest is found so, always in this order, names compared without case:
    set aside      columns without a name, id, idx, index, … and what ends in _id: they count, they do not tell
    label          a column called label, labels, class, target, y, …; else one called category, sentiment, score, stars, …;
                   else, once the input is known, the only column left
    image          the only column whose values are image files or names that end like one
    pair           two columns called text and text_pair, sentence1 and sentence2, premise and hypothesis, …
    text           a column of a usual name, the first of text, sentence, review, …; else the column of the longest texts,
                   if they are at least twice as long as those of any other
More than one choice where only one can be: that is for the person to say.
"""

import difflib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never

from modelhound.data.images import IMAGE_SUFFIXES
from modelhound.errors import DataError

__all__ = ["Roles", "Sample", "find_roles", "is_usual_name"]

Sample = Mapping[str, Sequence[Any]]
"""Column -> its values in the first rows."""


# fmt: off
_SURE_LABELS = ("label", "labels", "class", "classes", "target", "targets", "y")
_LIKELY_LABELS = (
    "category", "categories", "sentiment", "score", "stars", "star_rating", "rating", "ratings", "emotion", "emotions",
    "intent", "topic", "topics", "genre", "genres", "tag", "tags", "gold_label", "coarse_label", "fine_label", "polarity",
    "similarity", "similarity_score", "is_duplicate", "entailment", "class_name", "label_name", "label_text", "spam",
)
_TEXT_NAMES = (
    "text", "sentence", "review", "review_text", "review_body", "content", "document", "article", "body", "comment",
    "comment_text", "message", "tweet", "post", "utterance", "query", "question", "abstract", "description", "headline",
    "title", "sms", "texts", "sentences", "reviews",
)
_PAIRS = (
    ("text", "text_pair"), ("text1", "text2"), ("text_a", "text_b"), ("sentence", "sentence_pair"), ("sentence1", "sentence2"),
    ("sentence_a", "sentence_b"), ("sentence_1", "sentence_2"), ("sent1", "sent2"), ("premise", "hypothesis"),
    ("question1", "question2"), ("question", "sentence"), ("s1", "s2"), ("query", "passage"),
)
_INDEX_NAMES = {"id", "ids", "idx", "index", "uid", "uuid", "guid", "row", "row_number", "level_0", "__index_level_0__"}
# fmt: on
_USUAL_NAMES = {
    *("image", "file_name", "path", "split"),
    *_SURE_LABELS,
    *_LIKELY_LABELS,
    *_TEXT_NAMES,
    *_INDEX_NAMES,
    *(name for pair in _PAIRS for name in pair),
}
_NUM_SHOWN = 20
_EXAMPLE_CHARACTERS = 40
_CLEARLY_LONGER = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Names of columns: a label, and either an image, or a text and perhaps its pair."""

    label: str
    text: str | None = None
    pair: str | None = None
    image: str | None = None

    def columns(self) -> tuple[str, ...]:
        """All that have to be read, the label last."""
        return tuple(name for name in (self.text, self.pair, self.image, self.label) if name is not None)


def is_usual_name(name: str) -> bool:
    """Whether the name alone shows that somebody wrote it over a column."""
    return name.strip().lower() in _USUAL_NAMES


def find_roles(reference: str, sample: Sample, asked: Mapping[str, str]) -> Roles:
    """The roles of the columns; `asked` is role -> column."""
    _check_asked(reference, sample, asked)
    free = [name for name in sample if name not in asked.values() and not _is_index(name)]
    label = asked.get("label") or _label_by_name(reference, sample, free, asked)
    free = [name for name in free if name != label]
    if "text" in asked or "image" in asked:
        found = dict(asked)
    else:
        found = {**_find_input(reference, sample, free, asked, label), **asked}
    if label is None:
        left = [name for name in free if name not in found.values() and not _is_empty(sample[name])]
        if len(left) != 1:
            _unsure(reference, sample, "the label", found, left)
        label = left[0]
    return Roles(label=label, text=found.get("text"), pair=found.get("pair"), image=found.get("image"))


def _check_asked(reference: str, sample: Sample, asked: Mapping[str, str]) -> None:
    for role, column in asked.items():
        if column not in sample:
            by_case = {name.lower(): name for name in sample}
            close = difflib.get_close_matches(column.lower(), by_case, n=1)
            advice = f"did you mean {role}={by_case[close[0]]}?" if close else "choose one of them."
            raise DataError(
                f"cannot use --columns {role}={column} with {reference!r}: expected one of its columns; {advice} "
                f"Columns: {_show(sample)}"
            )
    twice = [column for column in asked.values() if list(asked.values()).count(column) > 1]
    if twice:
        raise DataError(
            f"cannot use column {twice[0]!r} of {reference!r} in two roles: expected another column for each, {_show(sample)}"
        )
    if "image" in asked and ("text" in asked or "pair" in asked):
        raise DataError(
            f"cannot use text and image columns of {reference!r} together: expected one of them, "
            "leave text= or image= out of --columns"
        )
    if "pair" in asked and "text" not in asked:
        raise DataError(
            f"cannot use --columns pair={asked['pair']} of {reference!r} alone: expected the first text too, add text=COLUMN"
        )


def _is_index(name: str) -> bool:
    lower = name.strip().lower()
    return not lower or lower in _INDEX_NAMES or lower.endswith(("_id", " id")) or lower.startswith("unnamed")


def _is_empty(values: Sequence[Any]) -> bool:
    return all(value is None or value == "" for value in values)


def _label_by_name(reference: str, sample: Sample, free: Sequence[str], asked: Mapping[str, str]) -> str | None:
    for names in (_SURE_LABELS, _LIKELY_LABELS):
        fit = [name for name in free if name.strip().lower() in names]
        if len(fit) > 1:
            _unsure(reference, sample, "the label", asked, fit)
        if fit:
            return fit[0]
    return None


def _find_input(
    reference: str, sample: Sample, free: Sequence[str], asked: Mapping[str, str], label: str | None
) -> dict[str, str]:
    """The image, or the text and its pair."""
    known = dict(asked) if label is None else {**asked, "label": label}
    images = [name for name in free if _holds_images(sample[name])]
    if len(images) > 1:
        _unsure(reference, sample, "the image", known, images)
    texts = [name for name in free if _holds_texts(sample[name]) and name not in images]
    by_name = {name.strip().lower(): name for name in texts}
    if images:
        if any(name in _TEXT_NAMES for name in by_name):
            _unsure(reference, sample, "to be looked at, an image or a text", known, images)
        return {"image": images[0]}
    for first, second in _PAIRS:
        if first in by_name and second in by_name:
            return {"text": by_name[first], "pair": by_name[second]}
    usual = next((by_name[name] for name in _TEXT_NAMES if name in by_name), None)
    if usual is not None:
        return {"text": usual}
    lengths = sorted(((_mean_length(sample[name]), name) for name in texts), reverse=True)
    if not lengths or (len(lengths) > 1 and lengths[0][0] < _CLEARLY_LONGER * lengths[1][0]):
        _unsure(reference, sample, "the text", known, texts)
    return {"text": lengths[0][1]}


def _holds_images(values: Sequence[Any]) -> bool:
    there = [value for value in values if value is not None and value != ""]
    return bool(there) and all(_is_image(value) for value in there)


def _is_image(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower().endswith(IMAGE_SUFFIXES) and "\n" not in value.strip()
    if isinstance(value, dict):
        return isinstance(value.get("bytes"), bytes) or ("bytes" in value and isinstance(value.get("path"), str))
    return isinstance(value, bytes) and not _is_utf8(value)


def _holds_texts(values: Sequence[Any]) -> bool:
    there = [value for value in values if value is not None]
    return bool(there) and all(
        isinstance(value, str) or (isinstance(value, bytes) and _is_utf8(value)) for value in there
    )


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _mean_length(values: Sequence[Any]) -> float:
    there = [len(value) for value in values if value]
    return sum(there) / len(there) if there else 0.0


def _unsure(reference: str, sample: Sample, what: str, known: Mapping[str, str], choices: Sequence[str]) -> Never:
    """Say so, with the columns and a --columns option that can be typed as it stands."""
    told = f"{', '.join(map(repr, choices[:_NUM_SHOWN]))} all could be" if len(choices) > 1 else "none looks like it"
    option = ",".join(f"{role}={column}" for role, column in _guess(sample, known, choices).items())
    raise DataError(
        f"cannot tell which column of {reference!r} is {what}: expected one that can be told by its name or content, but "
        f"{told}; name it, such as --columns {shlex.quote(option)}. Columns: {_show(sample)}"
    )


def _guess(sample: Sample, known: Mapping[str, str], choices: Sequence[str]) -> dict[str, str]:
    """The likeliest roles: what is known, the longest texts as text, and of the choices the one with fewest values as label."""
    guess = dict(known)
    left = [name for name in sample if name not in guess.values() and not _is_index(name)]
    if not {"text", "image"} & set(guess):
        images = [name for name in left if _holds_images(sample[name])]
        texts = [name for name in left if _holds_texts(sample[name])]
        if images:
            guess["image"] = images[0]
        else:
            guess["text"] = max(texts, key=lambda name: _mean_length(sample[name]), default="COLUMN")
    if "label" not in guess:
        left = [name for name in left if name not in guess.values()]
        among = [name for name in left if name in choices] or left
        guess["label"] = min(among, key=lambda name: len({str(value) for value in sample[name]}), default="COLUMN")
    return {role: guess[role] for role in ("text", "pair", "image", "label") if role in guess}


def _show(sample: Sample) -> str:
    shown = [f"{name!r} (such as {_example(values)})" for name, values in list(sample.items())[:_NUM_SHOWN]]
    return ", ".join(shown) + (f" and {len(sample) - _NUM_SHOWN} more" if len(sample) > _NUM_SHOWN else "")


def _example(values: Sequence[Any]) -> str:
    value = next((value for value in values if value is not None and value != ""), None)
    if isinstance(value, bytes) or (isinstance(value, dict) and isinstance(value.get("bytes"), bytes)):
        return "bytes"
    text = repr(value) if value is not None else "nothing"
    return text if len(text) <= _EXAMPLE_CHARACTERS else text[: _EXAMPLE_CHARACTERS - 2] + " …"
