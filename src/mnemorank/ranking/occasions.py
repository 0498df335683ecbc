"""Occasions: what was said or done on the day of good candidates is likelier to matter too.

"Why were we late for Mara's recital?" may need the note about the flat tyre of that morning, which shares nothing with
the question but its day. No model that reads one memory at a time can see that; the pool can.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mnemorank.memory import Memory
from mnemorank.ranking.fuse import FULL_POOL

Floats = NDArray[np.float64]
_COMPANIONS = 2


def company(memories: Sequence[Memory], odds: Floats) -> Floats:
    """How far the best two others of a memory's day stand above the pool's mean, in log-odds; 0 where none does.

    A companion that is missing counts 0, so a day of two memories says half as much as one of three. Of few memories
    a mean says little: a pool of fewer than `FULL_POOL` counts accordingly less.
    """
    above = np.maximum(0.0, odds - odds.mean()) if len(odds) else odds
    result = np.zeros(len(odds))
    for members in _days(memories).values():
        best = sorted(members, key=lambda i: -above[i])[: _COMPANIONS + 1]
        for i in members:
            others = [j for j in best if j != i][:_COMPANIONS]
            result[i] = sum(above[j] for j in others) / _COMPANIONS
    return result * min(1.0, len(odds) / FULL_POOL)


def _days(memories: Sequence[Memory]) -> dict[tuple[int, int, int], list[int]]:
    """Memories by the day on which they were said or, where that is not known, began; a month or a year is no day."""
    days = defaultdict(list)
    for position, memory in enumerate(memories):
        moment = memory.mentioned_at or memory.occurred_start
        if moment is not None and moment.month is not None and moment.day is not None:
            days[moment.year, moment.month, moment.day].append(position)
    return days
