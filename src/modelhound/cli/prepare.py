"""`hound prepare`."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from modelhound.analysis.wording import bytes_text, list_text, plural
from modelhound.cli.app import DONE, Json
from modelhound.cli.console import bars, make_table, open_console, print_json
from modelhound.cli.grouping import DATA, in_groups
from modelhound.cli.offering import show_skipped
from modelhound.settings import PrepareSettings

if TYPE_CHECKING:
    from modelhound.verbs.prepare import PrepareResult

_TOPICS = {
    "Data": (*DATA, "out"),
    "Models": ("models", "size"),
}
if TYPE_CHECKING:
    Asked = PrepareSettings
else:
    Asked = in_groups(PrepareSettings, _TOPICS)


def prepare(settings: Annotated[Asked, Parameter(name="*")], *, json: Json = False) -> int:
    """Decode a data set once into a folder of plain pixels, so that every later search only has to copy."""
    with bars() as watch:
        from modelhound.verbs.prepare import run_prepare

        result = run_prepare(settings, watch=watch)
    if json:
        print_json(result.to_json())
    else:
        _show_prepared(result, settings)
    return DONE


def _show_prepared(result: "PrepareResult", settings: PrepareSettings) -> None:
    from rich.markup import escape

    from modelhound.data.sources.embedded import EMBEDDED
    from modelhound.report.commands import command_to_repeat

    console = open_console()
    is_told = any(variant.models for variant in result.variants)  # of what an earlier start made, nobody knows for whom
    table = make_table("variant", "size>", *(("exact for",) if is_told else ()))
    for variant in result.variants:
        who = (escape(list_text(variant.models, most=3)) or "–",) if is_told else ()
        table.add_row(variant.name, bytes_text(variant.num_bytes), *who)
    console.print(table)
    done = "were prepared already" if result.was_finished else "are prepared"
    if result.mended:
        console.print(
            f"Damaged since they were prepared, and made again: {list_text(result.mended, most=3)}.",
            markup=False,
            highlight=False,
        )
    console.print(
        f"{plural(result.num_items, 'item')} of {result.data} {done} in {result.out}.", markup=False, highlight=False
    )
    show_skipped(result.skipped, console)
    data = f"./{result.out}" if str(result.out) in EMBEDDED else str(result.out)  # the bare name is another data set's
    command = command_to_repeat("search", {"data": data, "models": settings.models or None})
    console.print(f"Use them: {command}", markup=False, highlight=False, soft_wrap=True)
