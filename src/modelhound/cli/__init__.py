"""argv -> Settings -> one verb -> what a person sees. The only room that prints.

Results go to stdout, progress and messages to stderr; with --json, stdout holds one JSON document and nothing else.
One file per command, which adds itself to the App of `app`; `console` holds what they draw with. Verbs are imported when they
are called, so that --help answers at once.
"""

from modelhound.cli import (  # as --help has them
    breakeven,
    doctor,
    latency,
    loader,
    models,
    prepare,
    profile,
    report,
    runs,
    search,
    train,
)
from modelhound.cli.app import app, run

__all__ = [
    "app",
    "breakeven",
    "doctor",
    "latency",
    "loader",
    "models",
    "prepare",
    "profile",
    "report",
    "run",
    "runs",
    "search",
    "train",
]
