"""Loaders of public benchmarks, by task name. To add one: write a file, register its Loader, import it here."""

from mnemorank.data.benchmarks import beir, graded, hotpotqa, lists, locomo, longmemeval, musique, squad, triplets
from mnemorank.data.benchmarks.loader import Loader, loaders, read_ahead

__all__ = [
    "Loader",
    "beir",
    "graded",
    "hotpotqa",
    "lists",
    "loaders",
    "locomo",
    "longmemeval",
    "musique",
    "read_ahead",
    "squad",
    "triplets",
]
