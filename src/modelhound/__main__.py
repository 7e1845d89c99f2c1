"""python -m modelhound is the command hound."""

from modelhound.cli import main

main()
