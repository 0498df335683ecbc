"""Baselines, by name."""
