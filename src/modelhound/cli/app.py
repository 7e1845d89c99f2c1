"""The command itself: one App, which `__init__` gives its commands, and how it ends.

In:  argv
Out: an exit code; a sentence on stderr where it is not 0
Nothing here knows what a command does.

Exit codes: 0 done, 2 the request cannot be served, 1 anything else, 130 interrupted.
"""

import errno
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
from modelhound.errors import HoundError, RequestError, explain_error, is_out_of_memory

__all__ = ["DONE", "FAILED", "Json", "app", "run"]

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130
_LOADING_TORCH = ("search", "prepare", "profile", "breakeven", "latency", "loader", "train", "doctor")
_LEAST_ADDRESS_BYTES = 1_400_000_000  # of it the libraries take 0.85 when they are loaded, and the rest when they begin
_ADDRESS_BYTES_PER_CORE = 50_000_000  # stacks and buffers of their threads
_MOST_CORES = 64  # that they have threads for


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
    version_flags=("--version", "-V"),
    help_format="plaintext",  # the other formats load a parser each, and --help should answer at once
    help_formatter=Paragraphs(),
    default_parameter=Parameter(
        negative=(),
        consume_multiple=1,  # one at least
        json_list=False,  # a folder may be called [old]
        json_dict=False,
        show_default=_default_text,
    ),
    result_action="return_value",
    suppress_keyboard_interrupt=False,  # `run` says what became of the work
)


def _options_of(command: str) -> list[str]:
    return [
        name for argument in app[command].assemble_argument_collection() if argument.parse for name in argument.names
    ]


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    if argv and argv[0] == "help":  # as people type it
        argv = [*argv[1:], "--help"]
    try:
        _refuse_empty_values(argv)
        _refuse_too_little_memory(argv)
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
        if (root := _find_lack_of_memory(error)) is not None:
            complain(
                f"{explain_error(root)}: whatever was finished is kept, free some memory and start the same command again "
                "to go on, or ask for less at once (a smaller --batch, fewer --workers)"
            )
            return FAILED
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            from modelhound.analysis.wording import short_name

            complain(
                f"cannot use {short_name(str(error.filename))!r}: expected a path that a disk can hold, shorten it"
            )
            return REFUSED
        complain(
            f"unexpected {type(error).__name__}: {error}. Set MODELHOUND_DEBUG=1 to see where, and please report it."
        )
        return FAILED


def _refuse_empty_values(argv: Sequence[str]) -> None:
    """What a shell makes of a variable that is not set, as in --charts=$KIND: it would count as not given at all."""
    for word, after in zip(argv, [*argv[1:], None], strict=True):
        name, equals, value = word.partition("=")
        if name.startswith("--") and (after == "" if not equals else value == ""):
            raise RequestError(
                f"cannot use {name} with nothing behind it: expected a value, see `hound {argv[0]} --help`"
            )


def _find_lack_of_memory(error: BaseException) -> Exception | None:
    """The error that says so: this one, or one that it came of, since what cannot be loaded or begun is missed later."""
    known: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in known:
        if isinstance(found, Exception) and is_out_of_memory(found):
            return found
        if isinstance(found, SystemError) and _address_bytes() is not None:
            return MemoryError(str(found))  # where there is none for an error either, Python has lost it
        known.add(id(found))
        found = found.__cause__ or found.__context__
    return None


def _refuse_too_little_memory(argv: Sequence[str]) -> None:
    """Where a limit (ulimit -v) leaves no room for the libraries, they hang or abort while they are loaded."""
    if "--help" in argv or not argv or argv[0] not in _LOADING_TORCH:
        return
    allowed = _address_bytes()
    needed = _LEAST_ADDRESS_BYTES + _ADDRESS_BYTES_PER_CORE * min(_MOST_CORES, os.cpu_count() or 1)
    if allowed is not None and allowed < needed:
        raise RequestError(
            f"cannot run `hound {argv[0]}` in {allowed / 1e6:.0f} MB of memory: expected a limit of "
            f"{needed / 1e6:.0f} MB at least, because the libraries alone take nearly that much; raise it "
            "(ulimit -v)"
        )


def _address_bytes() -> int | None:
    """What this process may take at most; None where nobody has set a limit."""
    if sys.platform != "linux":
        return None
    import resource

    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if allowed == resource.RLIM_INFINITY else allowed
