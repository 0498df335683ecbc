"""What the first stage said: the given scores, else BM25 of the pipeline over the pool."""

from __future__ import annotations

import numpy as np

from mnemorank.evaluation.baselines.base import Baseline, Floats, Question, baselines
from mnemorank.ranking.conversation import memories_bm25


def score_first_stage(question: Question) -> Floats:
    """The order in which a file lists its candidates is no first stage: most files list the relevant ones first."""
    given = [memory.first_stage_score for memory in question.memories]
    if any(value is not None for value in given):
        return np.array([-np.inf if value is None else value for value in given])
    return memories_bm25(question.query, question.memories)


baselines.add(Baseline("first-stage", "the given first-stage scores, else the pipeline's BM25", score_first_stage))
