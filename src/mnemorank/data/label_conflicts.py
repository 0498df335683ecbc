"""Labels that rule each other out: one pair called right in one place and wrong in another."""

from __future__ import annotations

from collections.abc import Hashable

Given = tuple[float, str]
"""A label, and where it was given."""


class LabelsSeen:
    """The lowest and the highest label of every pair: graded ones between them must not hide that they differ."""

    def __init__(self) -> None:
        self._extremes: dict[Hashable, tuple[Given, Given]] = {}

    def contrary(self, pair: Hashable, label: float, where: str) -> Given | None:
        """Remember a label; the one from before that says the opposite, if there is one."""
        given = label, where
        low, high = self._extremes.get(pair, (given, given))
        for other in (low, high):
            if abs(other[0] - label) >= 1:
                return other
        self._extremes[pair] = (given if label < low[0] else low), (given if label > high[0] else high)
        return None
