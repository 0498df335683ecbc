"""Same-day boost: memories of the same day as good candidates are more likely to be relevant.

"Why were we late for Mara's recital?" may need the note about the flat tire of that morning, which shares nothing with
the question but its day. A model that reads one memory at a time cannot see that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.memory.memory import Memory
from mnemorank.ranking.first_stage import FULL_POOL
from mnemorank.ranking.stage import RankingContext

_COMPANIONS = 2
_CROWD = 8


class SameDay:
    """Raises memories of a day that has other good candidates."""

    name = "same_day"

    def adjust(self, context: RankingContext) -> Floats:
        result = np.zeros(len(context.pool))
        weight, candidates = context.weight(self.name), context.candidates
        if weight and candidates:
            memories = [context.pool[i] for i in candidates]
            result[candidates] = weight * same_day_evidence(memories, context.log_odds[candidates])
        return result


def same_day_evidence(memories: Sequence[Memory], odds: Floats) -> Floats:
    """Return how far the best two other memories of each memory's day are above the pool's mean, in log-odds.

    A missing companion counts 0, so a day with two memories counts half as much as one with three. A copy of the same
    text is not a companion. The value is scaled down where it could be chance: on days with more than `_CROWD` other
    memories or a large share of the pool, and in pools smaller than `FULL_POOL`.
    """
    result = np.zeros(len(odds))
    if not len(odds):
        return result
    above = np.maximum(0.0, odds - odds.mean())
    for members in _days(memories).values():
        scale = (1.0 - len(members) / len(odds)) * min(1.0, _CROWD / max(1, len(members) - 1))
        best = _best_texts(members, memories, above)
        for i in members:
            others = [above[j] for j in best if memories[j].text != memories[i].text][:_COMPANIONS]
            result[i] = scale * sum(others) / _COMPANIONS
    return result * min(1.0, len(odds) / FULL_POOL)


def _best_texts(members: Sequence[int], memories: Sequence[Memory], above: Floats) -> list[int]:
    """Return the best memories of a day with distinct texts, enough to find the companions of any of them."""
    best: dict[str, int] = {}
    for i in sorted(members, key=lambda i: -above[i]):
        best.setdefault(memories[i].text, i)
        if len(best) > _COMPANIONS:
            break
    return list(best.values())


def _days(memories: Sequence[Memory]) -> dict[tuple[int, int, int], list[int]]:
    """Group positions by the day on which a memory was mentioned or, if unknown, started."""
    days = defaultdict(list)
    for position, memory in enumerate(memories):
        moment = memory.mentioned_at or memory.occurred_start
        if moment is None or moment.month is None or moment.day is None:
            continue
        # "Since November" is often stored as November 1st, so a start on a 1st without a time of day means the month.
        if memory.mentioned_at is None and moment.day == 1 and moment.time is None:
            continue
        days[moment.year, moment.month, moment.day].append(position)
    return days
