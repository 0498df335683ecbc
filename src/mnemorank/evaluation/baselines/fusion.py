"""R0's fusion without a model: the first stage's score times recency and proof."""

from __future__ import annotations

import numpy as np

from mnemorank.evaluation.baselines.base import Baseline, Floats, Question, baselines
from mnemorank.ranking.calibrate import sigmoid
from mnemorank.ranking.fuse import Fusion, factors, standardised


def score_hindsight(question: Question) -> Floats:
    """The first stage's standardised score stands for the model's logit."""
    relevance = sigmoid(standardised(score_first_stage(question)))
    parts = factors(question.memories, Fusion(recency="linear"), question.now, None)
    return np.asarray(relevance * np.prod(list(parts.values()), axis=0), dtype=np.float64)


baselines.add(Baseline("fusion", "R0's fusion alone: first stage, recency and proof, no model", score_hindsight))
