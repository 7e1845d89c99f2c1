"""argv -> Settings -> one verb -> what a person sees. The only room that prints.

Results go to stdout, progress and messages to stderr; with --json, stdout holds one JSON document and nothing else.
One file per command, which adds itself to the App of `app`; `console` holds what they draw with. Verbs are imported when they
are called, so that --help answers at once.
"""

from modelhound.cli import doctor, models, prepare, runs, search  # each adds its command, in alphabetical order
from modelhound.cli.app import app, run

__all__ = ["app", "doctor", "models", "prepare", "run", "runs", "search"]
