"""Training: a recipe in, a model folder out. Needs the `train` extra."""
