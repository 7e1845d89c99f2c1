"""Everything that can go wrong on purpose, drawn once.

    HoundError                  anything modelhound raises itself; the command exits with 1
    ├── RequestError            what was asked for cannot be served; the command exits with 2
    │   ├── DataError           the data set is missing, unreadable or too small to rank models on
    │   │   └── BrokenItemError an item that looked well cannot be decoded; the next start leaves it out
    │   ├── BudgetError         finals would cost more than they may; the search ends without them
    │   ├── UnknownModelError   no model has that name
    │   └── RunBusyError        another process is writing the same run folder
    ├── ModelError              one model cannot be used; the search records it and goes on with the others
    ├── RankError               a rank of a training run died; the others were stopped
    ├── CrewError               no worker of a cluster is left, or none answers
    └── StoreError              a result cannot be written or read back

Messages follow one shape: cannot <do> <given>: expected <rule>, <advice>.
"""

__all__ = [
    "BrokenItemError",
    "BudgetError",
    "CrewError",
    "DataError",
    "HoundError",
    "ModelError",
    "RankError",
    "RequestError",
    "RunBusyError",
    "StoreError",
    "UnknownModelError",
    "explain_error",
    "first_line",
    "is_out_of_memory",
    "system_reason",
]


_EXPLAINED = ("cannot ", "memory ran out")
"""How all messages of this package begin."""

_NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "not enough memory",
    "alloc_failed",
    "bad_alloc",
    "cannot allocate",
    "failed to map segment",  # of a library that is to be loaded
    "can't start new thread",  # there is no room for its stack; or no more of them are allowed
)
_NO_WORDS = ("error return without exception set", "without setting an exception")
"""What Python says of a library's failure that had no memory left for an error of its own."""
_NO_ROOM_FOR_CODE = "could not create a primitive"  # oneDNN says it where there is no room for the code that it makes


class HoundError(Exception):
    """Anything modelhound raises itself."""


class RequestError(HoundError):
    """What was asked for cannot be served; nothing was run."""


class DataError(RequestError):
    """The data set is missing, unreadable or too small to rank models on."""


class BrokenItemError(DataError):
    """An item that looked well cannot be decoded; whoever opens the data set again gets it without that item."""


class BudgetError(RequestError):
    """Finals would cost more than they may; what was found before them stays."""


class UnknownModelError(RequestError):
    """No model has that name."""


class RunBusyError(RequestError):
    """Another process is writing the same run folder."""


class ModelError(HoundError):
    """One model cannot be used; the others go on."""


class RankError(HoundError):
    """A rank died: killed, crashed, or it lost the others."""


class CrewError(HoundError):
    """No worker of a cluster is left, or none answers."""


class StoreError(HoundError):
    """A result cannot be written or read back."""


def first_line(error: BaseException) -> str:
    """Why somebody else's code failed, in one line that fits into a sentence; its type where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def system_reason(error: OSError) -> str:
    """Why the system refused, to end a sentence with: "no such file or directory"."""
    return (error.strerror or type(error).__name__).lower()


def explain_error(error: Exception) -> str:
    """An error as one line: our own speak for themselves, others are named."""
    text = " ".join(str(error).split())
    if isinstance(error, HoundError):
        return text
    named = f"{type(error).__name__}: {text or 'no message'}"
    if not is_out_of_memory(error):
        return named
    return f"memory ran out ({named})" if text else "memory ran out"


def is_explained(told: str) -> bool:
    """Whether what `explain_error` made of an error says what to do about it; others' errors are only named."""
    return told.startswith(_EXPLAINED)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this error means that memory ran out; torch has several, of several kinds."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    if isinstance(error, SystemError):
        return any(words in text for words in _NO_WORDS)
    return isinstance(error, RuntimeError | OSError | ImportError) and (
        any(word in text for word in _NO_MEMORY) or text.strip() == _NO_ROOM_FOR_CODE
    )
