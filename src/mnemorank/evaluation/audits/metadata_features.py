"""Features of a candidate that are known without reading its text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from mnemorank._internal.arrays import Floats, mean_ranks
from mnemorank.artifact.hop_features import ROLES, features_of
from mnemorank.data.examples import Example
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

DATES = ("has a start", "has an end", "no end date", "undated", "newer", "longer span", "finer date", "overlaps now")
LENGTH = ("longer text", "longer than the others", "has a context")
POSITION = ("later in the file",)
TOKENS = ("hop", *(f"role {role}" for role in ROLES), "entities", "causal", "reasoning")


def feature_table(example: Example, types: Sequence[str]) -> dict[str, Floats]:
    """Return a matrix for each group of features, with a row per candidate."""
    memories = example.memories
    return {
        "dates": _dates(memories, example.query_time),
        "type": np.array([[float(memory.type == kind) for kind in types] for memory in memories]).reshape(
            len(memories), len(types)
        ),
        "length": _lengths(memories),
        "position": np.linspace(0, 1, len(memories))[:, None],
        "feature tokens": np.array([_tokens(example.query, memory.text) for memory in memories]),
    }


def feature_names(types: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of the columns of each matrix."""
    return {
        "dates": DATES,
        "type": tuple(f"type {kind}" for kind in types),
        "length": LENGTH,
        "position": POSITION,
        "feature tokens": TOKENS,
    }


def common_types(examples: Sequence[Example], limit: int = 8) -> list[str]:
    """Return the most frequent memory types."""
    counts = Counter(memory.type for example in examples for memory in example.memories if memory.type)
    return [kind for kind, _ in counts.most_common(limit)]


def _dates(memories: Sequence[Memory], now: Moment | None) -> Floats:
    middles = np.array([memory.date.middle if memory.date else math.nan for memory in memories])
    recency_rank = _ranks(middles)
    return np.array(
        [
            [
                float(memory.occurred_start is not None),
                float(memory.occurred_end is not None),
                float(memory.is_ongoing),
                float(memory.date is None),
                recency_rank[row],
                _span(memory),
                _precision(memory.date),
                _overlaps(memory, now),
            ]
            for row, memory in enumerate(memories)
        ]
    )


def _span(memory: Memory) -> float:
    if memory.occurred_start is None or memory.occurred_end is None:
        return 0.0
    return math.log1p(max(memory.occurred_end.end - memory.occurred_start.start, 0.0)) / 10


def _precision(date: Moment | None) -> float:
    if date is None:
        return 0.5
    return (1 + (date.month is not None) + (date.day is not None) + (date.time is not None)) / 4


def _overlaps(memory: Memory, now: Moment | None) -> float:
    if now is None or memory.date is None:
        return 0.5
    return float(memory.date.start <= now.end and (memory.occurred_end is None or memory.occurred_end.end >= now.start))


def _lengths(memories: Sequence[Memory]) -> Floats:
    words = np.array([len(memory.text.split()) for memory in memories], dtype=np.float64)
    has_context = np.array([float(bool(memory.context)) for memory in memories])
    return np.stack([np.log1p(words) / 5, _ranks(words), has_context], axis=1)


def _tokens(query: str, text: str) -> list[float]:
    features = features_of(query, text)
    roles = [float(features.role == role) for role in ROLES]
    return [features.hop / 2, *roles, len(features.entities) / 3, float(features.causal), float(features.reasoning)]


def _ranks(values: Floats) -> Floats:
    """Return ranks within the pool from 0 to 1; ties share their mean rank, unknown values get ½."""
    result = np.full(len(values), 0.5)
    known = np.flatnonzero(np.isfinite(values))
    if len(known) > 1:
        result[known] = mean_ranks(values[known]) / (len(known) - 1)
    return result
