"""argv -> Settings -> one verb -> what a person sees. The only room that prints.

Results go to stdout, progress and messages to stderr; with --json, stdout holds one JSON document and nothing else.
One file per command, with a function of its name, named below; `console` holds what they draw with, `offering` how they end. A
command is imported when it is called, so that --help answers at once.
"""

from modelhound.cli.app import app, run

__all__ = ["COMMANDS", "app", "run"]

COMMANDS = {
    "search": "Rank pretrained networks for a data set, with intervals, ties and a size-ordered control.",
    "report": "Make one page of a run that opens anywhere, or of several runs side by side.",
    "runs": "List earlier runs, newest first.",
    "models": "List models with their sizes, without loading them.",
    "prepare": "Decode a data set once into a folder of plain pixels, so that every later search only has to copy.",
    "doctor": "Check this machine and say what will be slow or broken.",
    "latency": "Time networks over batch, image and sequence sizes, and say by which law times grow and why.",
    "loader": "Find one batch size and number of loader processes that suit all models on this machine.",
    "train": "Fine-tune networks on 1 to N ranks: accuracy, where every second went, what bounds it and how it scales.",
    "profile": "Measure where the time of a model search goes, phase by phase: full models, their last layers, joint models.",
    "breakeven": "Measure fine-tuning against searching, and from how many models on searching takes longer.",
}
"""Name -> what `hound --help` says of it: the first sentence of the function, since that is not imported for it. In the order
in which a newcomer wants them."""

_MAY_BE_NAMED = {"report": "[RUNS]", "runs": "[ROOT]", "models": "[MODELS]"}
"""Command -> what may stand behind it without an option; what must stand there, the usage line finds by itself."""

for _number, (_name, _sentence) in enumerate(COMMANDS.items()):
    _usage = f"Usage: hound {_name} [OPTIONS] {_MAY_BE_NAMED[_name]}" if _name in _MAY_BE_NAMED else None
    app.command(f"modelhound.cli.{_name}:{_name}", name=_name, help=_sentence, sort_key=_number, usage=_usage)
