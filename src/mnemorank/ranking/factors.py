"""Factors that multiply the relevance: recency, time range, proof and trust."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.options import Options

NEUTRAL = 0.5


def factors(
    memories: Sequence[Memory], options: Options, now: Moment, time_range: tuple[Moment, Moment] | None
) -> dict[str, Floats]:
    """Return the multipliers of each memory by name: `1 + weight · (value − ½)`."""
    values: dict[str, tuple[float, list[float]]] = {}
    if options.recency != "none":
        values["recency"] = options.recency_weight, [recency(memory, options, now) for memory in memories]
    if time_range is not None:
        values["temporal"] = options.temporal_weight, [temporal(memory, time_range, now) for memory in memories]
    values["proof"] = options.proof_weight, [proof(memory.proof_count) for memory in memories]
    values["trust"] = options.trust_weight, [NEUTRAL if m.trust is None else m.trust for m in memories]
    return {name: 1 + weight * (np.array(value) - NEUTRAL) for name, (weight, value) in values.items()}


def recency(memory: Memory, options: Options, now: Moment) -> float:
    """Return the Hindsight reranker's recency: 0.1 to 1 (linear) or 0 to 1 (exponential).

    A coarse date counts as the middle of the part of its span that has passed: the year 2024 is not January 1st.
    """
    if memory.date is None:
        return NEUTRAL
    start, end = memory.date.start, memory.date.end
    happened = (start + min(end, max(now.start, start))) / 2
    days = max(now.start - happened, 0.0)
    if options.recency == "linear":
        return float(np.clip(1 - days / options.recency_days, 0.1, 1.0))
    return float(0.5 ** (days / options.half_life_days))


def temporal(memory: Memory, time_range: tuple[Moment, Moment], now: Moment) -> float:
    """Return 1 for a memory in the middle of the time range, ½ (neutral) at its edges, falling to 0 outside.

    A memory that spans several days counts by its nearest day; one that is still true lasts until now. The Hindsight
    reranker's own factor falls to 0 at the edges, which would penalize a memory of the first day of the range.
    """
    if memory.date is None:
        return NEUTRAL
    low, high = time_range[0].start, time_range[1].end
    middle, half = (low + high) / 2, max((high - low) / 2, 0.5)
    begin = memory.date.start
    if memory.occurred_start and memory.occurred_end:
        finish = memory.occurred_end.end
    else:
        finish = max(now.end, begin) if memory.is_ongoing and not memory.is_event else memory.date.end
    nearest = min(max(middle, begin), finish)
    return 1 - min(abs(nearest - middle) / (2 * half), 1.0)


def proof(count: int | None) -> float:
    """Return the Hindsight reranker's proof factor: ½ + ln(n)/10, from 0 to 1; neutral without a count."""
    return float(np.clip(NEUTRAL + math.log(count) / 10, 0, 1)) if count else NEUTRAL
