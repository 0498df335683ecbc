"""The stages after and around the model: pure functions from arrays to arrays, each usable alone."""
