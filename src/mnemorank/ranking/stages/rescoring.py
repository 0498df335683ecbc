"""Passage re-scoring: long memories that rank high are read again, two sentences at a time.

A small model that reads a whole paragraph can miss the one sentence that answers; it finds the answer when it reads
that sentence alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.artifact.calibration import model_odds
from mnemorank.errors import MnemorankError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Scored
from mnemorank.ranking.stage import RankingContext
from mnemorank.text.bm25 import bm25
from mnemorank.text.sentences import excerpts
from mnemorank.text.windows import best_windows

_LEADERS = 5
_MIN_CHARACTERS = 500
_MAX_EXCERPTS = 16


class Rescoring:
    """Moves the log-odds of the best long memories toward those of their best excerpt."""

    name = "rescoring"

    def adjust(self, context: RankingContext) -> Floats:
        unchanged = np.zeros(len(context.pool))
        weight = context.weight(self.name)
        if not weight:
            return unchanged
        texts = [(i, text) for i in leaders(context) for text in _excerpts(context.query, context.passage(i))]
        if not texts:
            return unchanged
        try:
            again = context.rescore([replace(context.pool[i], text=text) for i, text in texts])
        except MnemorankError as error:
            context.warn(f"passages of the best memories were not scored again: {error}")
            return unchanged
        scored = context.scored
        if again.manifest != scored.manifest or np.isnan(again.raw).any():
            return unchanged  # a fallback model answered, or the deadline passed: the scores are not comparable
        owners = np.array([i for i, _ in texts])
        best = np.full(len(context.pool), np.nan)
        for i in np.unique(owners):
            best[_copies(context.pool, scored, i)] = again.raw[owners == i].max()
        difference = model_odds(best, scored.manifest) - model_odds(scored.raw, scored.manifest)
        return np.where(np.isfinite(best), weight * difference, 0.0)


def leaders(context: RankingContext) -> list[int]:
    """Return the positions of the best memories whose text is long enough to be read again."""
    best: dict[tuple[str, float], int] = {}  # one of several copies is read for all of them
    for i in sorted(context.candidates, key=lambda i: -context.log_odds[i]):
        best.setdefault((context.pool[i].text, round(float(context.scored.raw[i]), 3)), i)
    first = islice(best.values(), _LEADERS)
    return [i for i in first if _is_paragraph(context.pool[i], context.passage(i))]


def _is_paragraph(memory: Memory, passage: str) -> bool:
    """Return whether excerpts are worth scoring; a long context would precede each of them and outweigh it."""
    return len(passage) >= _MIN_CHARACTERS and passage in memory.text and len(memory.context or "") < _MIN_CHARACTERS


def _excerpts(query: str, passage: str) -> list[str]:
    texts = excerpts(passage)
    if len(texts) <= _MAX_EXCERPTS:
        return texts
    return [texts[i] for i in best_windows(bm25(query, texts), _MAX_EXCERPTS)]


def _copies(pool: Sequence[Memory], scored: Scored, leader: int) -> list[int]:
    """Return the positions of the memories with the same text and score as the leader, itself included."""
    text, raw = pool[leader].text, scored.raw[leader]
    return [i for i, memory in enumerate(pool) if memory.text == text and np.isclose(scored.raw[i], raw, atol=1e-4)]
