"""The command itself: one App, which `__init__` gives its commands, and how it ends.

Exit codes: 0 done, 2 the request cannot be served, 1 anything else, 130 interrupted.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import cyclopts
from cyclopts import App, Parameter

from modelhound import __version__
from modelhound.cli.console import complain
from modelhound.cli.grouping import output_group
from modelhound.cli.helping import Paragraphs
from modelhound.cli.mistakes import describe_mistake
from modelhound.errors import HoundError, RequestError

__all__ = ["DONE", "FAILED", "Json", "app", "run"]

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130


Json = Annotated[
    bool,
    Parameter(name="--json", group=output_group, help="Print one JSON document on stdout and nothing else there."),
]


def _default_text(default: Any) -> Any:
    """What `--help` says of an option that is left out: nothing where leaving it out is to do without."""
    if default is None or default is False or default == ():
        return None
    return ", ".join(map(str, default)) if isinstance(default, tuple) else str(default)


app = App(
    name="hound",
    help="Which pretrained network to fine-tune, what that will cost, and where the time goes: measured, not guessed.",
    version=__version__,
    help_format="plaintext",  # the other formats load a parser each, and --help should answer at once
    help_formatter=Paragraphs(),
    default_parameter=Parameter(negative=(), consume_multiple=True, show_default=_default_text),
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `run` says what became of the work
)


def _options_of(command: str) -> list[str]:
    return [
        name for argument in app[command].assemble_argument_collection() if argument.parse for name in argument.names
    ]


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    try:
        code = app(list(argv), exit_on_error=False, print_error=False)
        sys.stdout.flush()  # a reader that has gone shows here and not after the last line of this program
        return code if isinstance(code, int) else DONE
    except cyclopts.CycloptsError as error:
        complain(describe_mistake(error, [name for name in app if not name.startswith("-")], _options_of))
        return REFUSED
    except RequestError as error:
        complain(str(error))
        return REFUSED
    except HoundError as error:
        complain(str(error))
        return FAILED
    except KeyboardInterrupt:
        complain("interrupted: whatever was finished is kept, start the same command again to go on")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # `hound runs | head` is no error
        return DONE
    except Exception as error:
        if os.environ.get("MODELHOUND_DEBUG"):
            raise
        complain(
            f"unexpected {type(error).__name__}: {error}. Set MODELHOUND_DEBUG=1 to see where, and please report it."
        )
        return FAILED
