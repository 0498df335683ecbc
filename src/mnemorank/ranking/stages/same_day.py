"""Same-day boost: what was said or done on the day of good candidates is likelier to matter too.

"Why were we late for Mara's recital?" may need the note about the flat tire of that morning, which shares nothing with
the question but its day. A model that reads one memory at a time cannot see that; the pool can.
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
            result[candidates] = weight * company(memories, context.log_odds[candidates])
        return result


def company(memories: Sequence[Memory], odds: Floats) -> Floats:
    """How far the best two others of a memory's day stand above the pool's mean, in log-odds; 0 where none does.

    A companion that is missing counts 0, so a day of two memories says half as much as one of three; the same text
    again is no companion. Of many others two are good by chance, a day that most memories share tells little, and so
    does the mean of a few: more than `_CROWD` others, a large share of the pool, a pool of fewer than `FULL_POOL`
    count accordingly less.
    """
    result = np.zeros(len(odds))
    if not len(odds):
        return result
    above = np.maximum(0.0, odds - odds.mean())
    for members in _days(memories).values():
        telling = (1.0 - len(members) / len(odds)) * min(1.0, _CROWD / max(1, len(members) - 1))
        best = _best_texts(members, memories, above)
        for i in members:
            others = [above[j] for j in best if memories[j].text != memories[i].text][:_COMPANIONS]
            result[i] = telling * sum(others) / _COMPANIONS
    return result * min(1.0, len(odds) / FULL_POOL)


def _best_texts(members: Sequence[int], memories: Sequence[Memory], above: Floats) -> list[int]:
    """As many of a day's memories as one of them needs for its companions, best first, no text twice."""
    best: dict[str, int] = {}
    for i in sorted(members, key=lambda i: -above[i]):
        best.setdefault(memories[i].text, i)
        if len(best) > _COMPANIONS:
            break
    return list(best.values())


def _days(memories: Sequence[Memory]) -> dict[tuple[int, int, int], list[int]]:
    """Memories by the day on which they were said or, where that is not known, began."""
    days = defaultdict(list)
    for position, memory in enumerate(memories):
        moment = memory.mentioned_at or memory.occurred_start
        if moment is None or moment.month is None or moment.day is None:
            continue
        # "Since November" is stored as the first of November: a beginning on a first, with no time of day, is a month.
        if memory.mentioned_at is None and moment.day == 1 and moment.time is None:
            continue
        days[moment.year, moment.month, moment.day].append(position)
    return days
