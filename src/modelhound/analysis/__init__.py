"""Pure mathematics on records. Nothing below this room imports torch, opens a file or reads a clock."""

from modelhound.analysis.ranking import rank_agreement, rank_models

__all__ = ["rank_agreement", "rank_models"]
