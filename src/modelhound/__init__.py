"""modelhound."""
