"""`hound`, and `python -m modelhound`: from the first moment on, Ctrl-C ends quietly.

In:  argv
Out: an exit code
Everything else is in `cli`, whose imports take a tenth of a second in which a person may change their mind.
"""

import os
import signal
import sys

__all__ = ["main"]


def main() -> None:
    """The command `hound`."""
    try:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # started with the stream closed
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123
        from modelhound.cli import run
        from modelhound.cli.lost_threads import end_where_threads_are_lost

        end_where_threads_are_lost()
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    except MemoryError:
        if os.environ.get("MODELHOUND_DEBUG"):
            raise
        os.write(2, b"hound: there is no memory to begin with: free some and start the same command again\n")
        code = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the work is done and said: too late to interrupt it
    sys.exit(code)


if __name__ == "__main__":
    main()
