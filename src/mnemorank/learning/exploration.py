"""Exploration: swap neighbors of a ranking with a small, recorded probability.

Without it, the log only shows how users react to the model's own order. A memory moves by at most one rank.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from mnemorank.errors import InputError
from mnemorank.results import Ranking

T = TypeVar("T")


def swap_neighbors(
    items: Sequence[T], probability: float, rng: random.Random | None = None
) -> tuple[list[T], list[float]]:
    """Return the items with some neighbors swapped, and the propensity of each item at its new place.

    Either the pairs (1, 2), (3, 4), … or (2, 3), (4, 5), … are candidates; each is swapped independently.

    :param probability: that a candidate pair is swapped; 0 changes nothing.
    """
    if not 0 <= probability <= 0.5:
        raise InputError(f"expected a probability from 0 to 0.5, got {probability!r}", field="explore")
    rng = rng or random.Random()
    order = list(items)
    is_moved = [False] * len(order)
    if probability > 0:
        for first in range(rng.randrange(2), len(order) - 1, 2):
            if rng.random() < probability:
                order[first], order[first + 1] = order[first + 1], order[first]
                is_moved[first] = is_moved[first + 1] = True
    return order, [_propensity(index, len(order), is_moved[index], probability) for index in range(len(order))]


def explore(ranking: Ranking, probability: float, rng: random.Random | None = None) -> tuple[Ranking, list[float]]:
    """Apply `swap_neighbors` to a ranking. Ranks, rank changes and scores follow the order shown."""
    order, propensities = swap_neighbors(ranking.results, probability, rng)
    results = tuple(
        replace(result, rank=rank, rank_change=result.rank_change + result.rank - rank, score=previous.score)
        for rank, (result, previous) in enumerate(zip(order, ranking.results, strict=True), 1)
    )
    return replace(ranking, results=results), propensities


def _propensity(index: int, length: int, is_moved: bool, probability: float) -> float:
    """An item is in a candidate pair with each of its neighbors half of the time."""
    if length < 2:
        return 1.0
    if is_moved:
        return probability / 2
    neighbors = (index > 0) + (index < length - 1)
    return 1 - probability * neighbors / 2
