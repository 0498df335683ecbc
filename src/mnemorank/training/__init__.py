"""Training: from a recipe to a model folder. Needs the `train` extra."""
