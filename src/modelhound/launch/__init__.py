"""Run a function somewhere else.

    fresh      in a new interpreter, once

Nothing here knows what the function does.
"""

from modelhound.launch.fresh import Outcome, run_in_fresh_process

__all__ = ["Outcome", "run_in_fresh_process"]
