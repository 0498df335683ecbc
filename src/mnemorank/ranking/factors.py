"""Bring together what the model says, what the first stage said, and what is known about each memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mnemorank._internal.arrays import Floats, mean_ranks
from mnemorank._internal.validation import check_number
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.text.words import terms

NEUTRAL = 0.5
FULL_POOL = 10


@dataclass(frozen=True, slots=True)
class Fusion:
    """Weights of the factors beside the model's relevance. A memory that lacks a datum is neither raised nor lowered.

    :param recency: how age counts; `none` by default, since the model reads the dates itself.
    :param first_stage_weight: log-odds per standard deviation of the first-stage score; None takes the artifact's.
    :param first_stage_method: standardise the first stage's `score` or its `rank`; None takes the artifact's.
    :param link_weight: log-odds for a memory that the query or the best candidates lead to (`ranking.links`); None
        takes the artifact's, 0 asks each memory alone.
    :param occasion_weight: log-odds for each log-odds by which others of the same day stand above the pool
        (`ranking.occasions`); None takes the artifact's, 0 asks each memory alone.
    :param asked_time_weight: log-odds for a memory of the time that the query names, such as "last Saturday"
        (`ranking.asked_time`); None takes the artifact's, 0 reads no times.
    :param closer_weight: the share that the best excerpt of a leading long memory has in its log-odds
        (`ranking.excerpts`); None takes the artifact's, 0 looks at nothing twice.
    """

    recency: Literal["none", "linear", "exponential"] = "none"
    recency_weight: float = 0.2
    recency_days: float = 365.0
    half_life_days: float = 90.0
    temporal_weight: float = 0.2
    proof_weight: float = 0.1
    trust_weight: float = 0.2
    first_stage_weight: float | None = None
    first_stage_method: Literal["score", "rank"] | None = None
    link_weight: float | None = None
    occasion_weight: float | None = None
    asked_time_weight: float | None = None
    closer_weight: float | None = None

    def __post_init__(self) -> None:
        if self.recency not in ("none", "linear", "exponential"):
            raise InputError(f"expected none, linear or exponential, got {self.recency!r}", field="recency")
        if self.first_stage_method not in (None, "score", "rank"):
            raise InputError(f"expected score or rank, got {self.first_stage_method!r}", field="first_stage_method")
        for name in ("recency_days", "half_life_days"):
            check_number(name, getattr(self, name), 0)
            if not getattr(self, name):
                raise InputError(f"expected a number above 0, got {getattr(self, name)!r}", field=name)
        for name in ("recency_weight", "temporal_weight", "proof_weight", "trust_weight"):
            check_number(name, getattr(self, name), 0, 1)
        for name in ("first_stage_weight", "link_weight", "asked_time_weight"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0)
        for name in ("occasion_weight", "closer_weight"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 0, 1)


def evidence(first_stage: Floats, weight: float, method: str = "score") -> Floats:
    """The log-odds that first-stage scores are worth: `weight` per standard deviation; a missing score (NaN) adds none.

    Of two scores one is always a deviation above the mean, however little they differ: a pool of fewer than
    `FULL_POOL` says accordingly less.
    """
    known = int(np.isfinite(first_stage).sum())
    return weight * min(1.0, known / FULL_POOL) * standardised(first_stage, method)


def trust_in_words(query: str, long_query: int | None) -> float:
    """How much BM25 is to be believed about a query: wholly up to `long_query` terms, beyond them accordingly less.

    It adds up all terms alike, and in a turn of a chat most of them are not what is asked. Of Chinese and Japanese two
    characters count as a term.
    """
    if long_query is None:
        return 1.0
    found = terms(query)
    characters = sum(len(term) == 1 and not term.isascii() for term in found)
    return min(1.0, long_query / max(len(found) - characters / 2, 1))


def standardised(scores: Floats, method: str = "score") -> Floats:
    """Scores as standard deviations from the pool's mean, by value or by rank; 0 where missing or all are equal."""
    scores = np.asarray(scores, dtype=np.float64)
    known = np.isfinite(scores)
    result = np.zeros_like(scores)
    values = scores[known]
    if method == "rank" and len(values):
        values = mean_ranks(values)
    if len(values) > 1:
        # Scaling first keeps the squares of very large scores finite.
        values = values / max(float(np.abs(values).max()), 1e-300)
        spread = float(values.std())
        if spread > 1e-9:
            result[known] = (values - values.mean()) / spread
    return result


def factors(
    memories: Sequence[Memory], fusion: Fusion, now: Moment, asked: tuple[Moment, Moment] | None
) -> dict[str, Floats]:
    """The multipliers of each memory, by name: `1 + weight · (value − ½)`."""
    values: dict[str, tuple[float, list[float]]] = {}
    if fusion.recency != "none":
        values["recency"] = fusion.recency_weight, [recency(memory, fusion, now) for memory in memories]
    if asked is not None:
        values["temporal"] = fusion.temporal_weight, [temporal(memory, asked, now) for memory in memories]
    values["proof"] = fusion.proof_weight, [proof(memory.proof_count) for memory in memories]
    values["trust"] = fusion.trust_weight, [NEUTRAL if m.trust is None else m.trust for m in memories]
    return {name: 1 + weight * (np.array(value) - NEUTRAL) for name, (weight, value) in values.items()}


def recency(memory: Memory, fusion: Fusion, now: Moment) -> float:
    """R0's recency, 0.1 to 1 (linear) or 0 to 1 (exponential).

    A coarse date counts as the middle of what has passed of its span: the year 2024 is not January 1st.
    """
    if memory.date is None:
        return NEUTRAL
    start, end = memory.date.start, memory.date.end
    happened = (start + min(end, max(now.start, start))) / 2
    days = max(now.start - happened, 0.0)
    if fusion.recency == "linear":
        return float(np.clip(1 - days / fusion.recency_days, 0.1, 1.0))
    return float(0.5 ** (days / fusion.half_life_days))


def temporal(memory: Memory, asked: tuple[Moment, Moment], now: Moment) -> float:
    """1 where the memory holds in the middle of the asked range, ½ at its edges, which is neutral, and falling to 0
    as far again outside. (R0's own falls to 0 at the edges: what holds on the range's first day would be lowered.)

    A memory that spans time counts by its nearest day; one that is still true spans until now.
    """
    if memory.date is None:
        return NEUTRAL
    low, high = asked[0].start, asked[1].end
    middle, half = (low + high) / 2, max((high - low) / 2, 0.5)
    begin = memory.date.start
    if memory.occurred_start and memory.occurred_end:
        finish = memory.occurred_end.end
    else:
        finish = max(now.end, begin) if memory.is_ongoing and not memory.is_event else memory.date.end
    nearest = min(max(middle, begin), finish)
    return 1 - min(abs(nearest - middle) / (2 * half), 1.0)


def proof(count: int | None) -> float:
    """R0's proof: ½ + ln(n)/10, within 0 and 1; nothing known or no proof is neutral."""
    return float(np.clip(NEUTRAL + math.log(count) / 10, 0, 1)) if count else NEUTRAL
