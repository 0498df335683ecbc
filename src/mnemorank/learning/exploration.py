"""A little exploration: neighbours change places with a small probability, which is logged.

Without it the log only ever says what people make of our own order. Each memory moves by at most one place.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from mnemorank.errors import InputError
from mnemorank.results import Ranking

T = TypeVar("T")


def swap_neighbours(
    items: Sequence[T], probability: float, source: random.Random | None = None
) -> tuple[list[T], list[float]]:
    """The items with some neighbours swapped, and by position how likely its item came to stand there.

    Either the pairs (0,1), (2,3), … or (1,2), (3,4), … are considered, each swapped on its own.

    :param probability: that a considered pair is swapped; 0 changes nothing.
    """
    if not 0 <= probability <= 0.5:
        raise InputError(f"expected a probability from 0 to 0.5, got {probability!r}", field="explore")
    source = source or random.Random()
    order = list(items)
    moved = [False] * len(order)
    if probability > 0:
        for first in range(source.randrange(2), len(order) - 1, 2):
            if source.random() < probability:
                order[first], order[first + 1] = order[first + 1], order[first]
                moved[first] = moved[first + 1] = True
    return order, [_chance(position, len(order), moved[position], probability) for position in range(len(order))]


def explore(ranking: Ranking, probability: float, source: random.Random | None = None) -> tuple[Ranking, list[float]]:
    """Apply `swap_neighbours` to a ranking. Ranks, rank changes and scores follow the order shown."""
    order, chances = swap_neighbours(ranking.results, probability, source)
    results = tuple(
        replace(result, rank=rank, rank_change=result.rank_change + result.rank - rank, score=previous.score)
        for rank, (result, previous) in enumerate(zip(order, ranking.results, strict=True), 1)
    )
    return replace(ranking, results=results), chances


def _chance(position: int, length: int, moved: bool, probability: float) -> float:
    """A memory is in one of the two pairings at each end that has a neighbour: two inside, one at the ends."""
    if length < 2:
        return 1.0
    if moved:
        return probability / 2
    neighbours = (position > 0) + (position < length - 1)
    return 1 - probability * neighbours / 2
