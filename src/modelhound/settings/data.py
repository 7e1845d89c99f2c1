"""Which items, and what is to be told of them."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from modelhound.errors import RequestError
from modelhound.settings.checks import check_at_least, check_choices, check_once, check_text, split_list, tidy
from modelhound.settings.scorers import TASKS, Task

__all__ = ["ROLES", "DataSettings"]

ROLES = ("text", "pair", "image", "label")
"""What a column of a table can be: a text, the second text of a pair, an image (a path, or the file itself), the target."""


@dataclass(frozen=True)
class DataSettings:
    """Which items, and what is to be told of them."""

    data: str
    """digits, fashion, sms; a folder with one folder of images per class; a CSV, JSONL, Parquet or tar file."""

    _: KW_ONLY

    columns: tuple[str, ...] = ()
    """Of a table: which column is what, such as text=review,label=stars; roles are text, pair, image and label."""

    task: Literal["auto", "classification", "multilabel", "regression"] = "auto"
    """What is to be told of an item: one class, several labels, a number; auto looks at the labels."""

    split: str | None = None
    """Which part of a data set that comes in parts, such as train or test; the default is train."""

    limit: int | None = None
    """Use at most this many items, the same number of every class as far as possible."""

    seed: int = 0
    """Decides which items --limit takes, how splits are drawn, and random weights."""

    follow_links: bool = False
    """Take items that are links out of the data folder; say so only of a folder that you trust."""

    def __post_init__(self) -> None:
        tidy(self, "columns", split_list(self.columns))
        self.roles()
        if self.data == "":
            raise RequestError("cannot open data '': expected digits, fashion, sms or the path of a folder or file")
        check_text("data", self.data)
        check_choices("task", (self.task,), ("auto", *TASKS))
        check_at_least("limit", self.limit, 4)
        check_at_least("seed", self.seed, 0)

    def roles(self) -> dict[str, str]:
        """The columns as role -> name."""
        pairs = [each.partition("=") for each in self.columns]
        for given, (role, _, column) in zip(self.columns, pairs, strict=True):
            if role not in ROLES or not column:
                raise RequestError(
                    f"cannot use --columns {given!r}: expected ROLE=COLUMN with a role of {', '.join(ROLES)}, "
                    "such as text=review"
                )
        check_once("columns", [role for role, _, _ in pairs])
        return {role: column for role, _, column in pairs}

    def asked_task(self) -> Task | None:
        """The task, or None to find out."""
        return None if self.task == "auto" else self.task
