"""Newest first: what a memory store without a reranker often does."""

from __future__ import annotations

import numpy as np

from mnemorank.evaluation.baselines.base import Baseline, Floats, Question, baselines


def score_recency(question: Question) -> Floats:
    """Undated memories come last."""
    return np.array([memory.date.middle if memory.date else -np.inf for memory in question.memories])


baselines.add(Baseline("recency", "newest first", score_recency))
