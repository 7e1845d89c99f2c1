"""`hound models`."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from modelhound.analysis.wording import count_text
from modelhound.cli.app import DONE, Json
from modelhound.cli.console import bars, make_fitting_table, open_console, print_json
from modelhound.settings import split_list

if TYPE_CHECKING:
    from modelhound.models import ModelCard


_group = Group("Models", sort_key=1)

Wanted = Annotated[
    tuple[str, ...],
    Parameter(
        name="--models", alias="--model", group=_group, help="References or globs, such as 'zoo:*' or 'timm:resnet*'."
    ),
]
Where = Annotated[
    str | None,
    Parameter(
        group=_group,
        help="Keep only models for which this holds, such as \"params < 30e6 and family == 'resnet'\".",
    ),
]


def models(wanted: Wanted = ("zoo:*",), *, where: Where = None, json: Json = False) -> int:
    """List models with their sizes, without loading them."""
    with bars() as watch:
        from modelhound.models import find_cards

        cards = find_cards(split_list(wanted), where=where, watch=watch)
    if json:
        from modelhound.records import to_plain

        print_json({"models": [to_plain(card) for card in cards]})
    else:
        _show_models(cards)
    return DONE


def _show_models(cards: "list[ModelCard]") -> None:
    from rich.markup import escape

    console = open_console()
    columns = {
        "model": [card.model for card in cards],
        "family": [escape(card.family) for card in cards],
        "params>": [count_text(card.num_parameters) for card in cards],
        "input>": [
            "{} x {}".format(*card.input_size) if card.input_size else f"{card.max_tokens or '?'} tokens"
            for card in cards
        ],
        "trained on": [escape(card.trained_on) for card in cards],
        "licence": [escape(card.licence) for card in cards],
        "downloads>": ["" if card.downloads is None else count_text(card.downloads) for card in cards],
    }
    left_out = [set() if any(columns["downloads>"]) else {"downloads>"}]
    for name in ("family", "licence", "input>"):
        left_out.append(left_out[-1] | {name})
    console.print(make_fitting_table(console, columns, left_out, folded="trained on"))
