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
    "system_reason",
]


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
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, HoundError) else f"{type(error).__name__}: {text}"
