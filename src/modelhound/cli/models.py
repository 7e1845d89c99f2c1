"""`hound models`."""

from typing import TYPE_CHECKING

from modelhound.analysis.wording import count_text
from modelhound.cli.app import DONE, Json
from modelhound.cli.console import bars, make_table, open_console, print_json
from modelhound.settings import split_list

if TYPE_CHECKING:
    from modelhound.models import ModelCard


def models(patterns: tuple[str, ...] = ("zoo:*",), *, where: str | None = None, json: Json = False) -> int:
    """List models with their sizes, without loading them.

    Parameters
    ----------
    patterns
        References or globs, such as 'zoo:*' or 'timm:resnet*'.
    where
        Keep only models for which this holds, such as "params < 30e6 and family == 'resnet'".
    """
    from modelhound.models import find_cards

    with bars() as watch:
        cards = find_cards(split_list(patterns), where=where, watch=watch)
    if json:
        from modelhound.records import to_plain

        print_json({"models": [to_plain(card) for card in cards]})
    else:
        _show_models(cards)
    return DONE


def _show_models(cards: "list[ModelCard]") -> None:
    from rich.markup import escape

    table = make_table("model", "family", "params>", "input>", "trained on", "licence", "downloads>")
    for card in cards:
        taken = "{} x {}".format(*card.input_size) if card.input_size else f"{card.max_tokens or '?'} tokens"
        cells = (card.model, card.family, count_text(card.num_parameters), taken, card.trained_on, card.licence)
        table.add_row(*map(escape, cells), "" if card.downloads is None else count_text(card.downloads))
    open_console().print(table)
