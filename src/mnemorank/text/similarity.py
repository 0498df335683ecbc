"""Similarity of two texts or lists of names, from 0 to 1."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set


def cosine(first: Counter[str], second: Counter[str]) -> float:
    """Return the cosine of two bags of terms."""
    if len(first) > len(second):
        first, second = second, first
    dot = sum(count * second[term] for term, count in first.items() if term in second)
    norms = sum(c * c for c in first.values()) * sum(c * c for c in second.values())
    return float(dot / norms**0.5) if dot else 0.0


def jaccard(first: Set[str], second: Set[str]) -> float:
    """Return the share of elements in common; 0 if both sets are empty."""
    union = len(first | second)
    return len(first & second) / union if union else 0.0


def overlap(first: Set[str], second: Set[str]) -> float:
    """Return the share of the larger set's elements that both have; 0 if both sets are empty."""
    larger = max(len(first), len(second))
    return len(first & second) / larger if larger else 0.0


def name_similarity(first: Iterable[str], second: Iterable[str]) -> float:
    """Return the share of names in common, ignoring case; 0 if either list is empty."""
    return jaccard({name.lower() for name in first}, {name.lower() for name in second})
