"""Evidence from the first stage: the retriever's scores, or BM25 over the pool."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mnemorank._internal.arrays import Floats, mean_ranks
from mnemorank._internal.deadline import Deadline
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Scored
from mnemorank.options import FirstStageSource, Options
from mnemorank.text.bm25 import bm25
from mnemorank.text.chat import is_reply, user_text
from mnemorank.text.words import terms

# Evidence from smaller pools is scaled down: of two scores, one is always far above the mean.
FULL_POOL = 10
_LARGEST_COSINE = 1.0 + 1e-6  # of vectors of length 1, up to rounding
# Extra weight of the user's words in a chat. On LongMemEval's training questions with BM25 alone, the MAP of sessions
# is .882 at 0, .901 at .5, .907 at 1, .907 at 2, .906 at 4.
_USER_WEIGHT = 1.0


@dataclass(frozen=True, slots=True)
class FirstStageRanking:
    """The first stage's view of a pool.

    :param scores: one for each memory, NaN where there is none.
    :param order: positions, best first, those without a score last; the caller's order if it passed no scores.
    :param is_bm25: whether the scores are our own BM25's, not the caller's.
    """

    scores: Floats
    order: list[int]
    is_bm25: bool

    @classmethod
    def of(
        cls, query: str, pool: Sequence[Memory], source: FirstStageSource, *, deadline: Deadline | None = None
    ) -> FirstStageRanking:
        caller_scores = np.array(
            [np.nan if m.first_stage_score is None else m.first_stage_score for m in pool], dtype=np.float64
        )
        is_bm25 = source == "bm25" or (source == "auto" and not np.isfinite(caller_scores).any())
        scores = caller_scores
        if is_bm25:
            scores = memories_bm25(query, pool, deadline=deadline)
        elif source == "none":
            scores = np.full(len(pool), np.nan)
        return cls(scores, _best_first(scores if source == "bm25" else caller_scores), is_bm25)

    @property
    def is_cosine(self) -> bool:
        """Whether the scores are the caller's and all between -1 and 1."""
        known = self.scores[np.isfinite(self.scores)]
        return not self.is_bm25 and len(known) > 0 and bool(np.abs(known).max() <= _LARGEST_COSINE)

    def evidence(self, query: str, scored: Scored, options: Options) -> Floats:
        """Return the log-odds that the first stage is worth to each memory."""
        weight = first_stage_weight(query, scored, self, options)
        return evidence(self.scores, weight, options.first_stage_method or scored.manifest.first_stage_method)


def memories_bm25(query: str, memories: Sequence[Memory], *, deadline: Deadline | None = None) -> Floats:
    """Return BM25 scores of a pool; in chats, the user's words count more than the assistant's.

    :param deadline: memories that were not scored by then get NaN.
    """
    texts = [memory.text for memory in memories]
    user_texts = ["" if is_reply(memory.speaker) else user_text(memory.text) for memory in memories]
    scores = bm25(query, texts, deadline=deadline)
    if texts == user_texts:
        return scores
    user_scores = bm25(query, user_texts, deadline=deadline)
    return scores + _USER_WEIGHT * np.nan_to_num(user_scores)


def first_stage_weight(query: str, scored: Scored, first_stage: FirstStageRanking, options: Options) -> float:
    """Return the weight of the first stage for this request, by the manifest and the overrides in the options.

    It moves from `first_stage` to `first_stage_windowed` with the share of memories that the model read only in part,
    and is smaller for BM25 on long queries. Cosines may have a weight of their own.
    """
    weights = replace(scored.manifest.weights, **options.weights)
    whole = weights.first_stage
    overridden = "first_stage" in options.weights and "first_stage_cosine" not in options.weights
    if first_stage.is_cosine and weights.first_stage_cosine is not None and not overridden:
        whole = weights.first_stage_cosine
    windowed = whole if weights.first_stage_windowed is None else weights.first_stage_windowed
    weight = whole + scored.windowed_share() * (windowed - whole)
    return weight * bm25_trust(query, scored.manifest.long_query_terms) if first_stage.is_bm25 else weight


def bm25_trust(query: str, long_query_terms: int | None) -> float:
    """Return how far to trust BM25 on a query: 1 up to `long_query_terms` terms, less beyond that.

    BM25 weighs all terms equally, and most terms of a long chat message are not what it asks about. Two characters of
    Chinese or Japanese count as one term.
    """
    if long_query_terms is None:
        return 1.0
    query_terms = terms(query)
    characters = sum(len(term) == 1 and not term.isascii() for term in query_terms)
    return min(1.0, long_query_terms / max(len(query_terms) - characters / 2, 1))


def evidence(first_stage: Floats, weight: float, method: str = "score") -> Floats:
    """Return log-odds from first-stage scores: `weight` per standard deviation; a missing score (NaN) adds none."""
    known = int(np.isfinite(first_stage).sum())
    return weight * min(1.0, known / FULL_POOL) * standardize(first_stage, method)


def standardize(scores: Floats, method: str = "score") -> Floats:
    """Return scores as standard deviations from the pool's mean; 0 where missing or if all are equal.

    :param method: `score`, or `rank` to standardize the ranks instead.
    """
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


def _best_first(scores: Floats) -> list[int]:
    known = [-math.inf if math.isnan(score) else float(score) for score in scores]
    return sorted(range(len(known)), key=lambda i: -known[i])
