"""Adapters for other frameworks, one per module. Each needs its framework, this package needs none."""
