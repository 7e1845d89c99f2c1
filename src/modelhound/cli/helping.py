"""How `--help` is drawn: what is written over several lines in a docstring is one paragraph on the screen.

In:  what cyclopts has to say of a command
Out: the same on the screen
Nothing here knows an option.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

__all__ = ["Paragraphs"]


class Paragraphs:
    """Draws as cyclopts does, which is loaded only when somebody asks for help."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """One box of options or commands."""
        from cyclopts.help import DefaultFormatter, InlineText
        from rich.text import Text

        for entry in panel.entries:
            said = entry.description
            if isinstance(said, InlineText) and isinstance(said.primary_renderable, Text):
                said.primary_renderable = Text(" ".join(said.primary_renderable.plain.split()))
        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: "Console", options: "ConsoleOptions", usage: Any) -> None:
        """The first line."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)
