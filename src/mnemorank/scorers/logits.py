"""From a model's output to one score a pair."""

from __future__ import annotations

import numpy as np

from mnemorank.errors import ScorerError
from mnemorank.scorers.base import Scores


def one_score_a_row(logits: Scores, name: str) -> Scores:
    """The only logit of a regression head, or the log-odds of the second of two classes."""
    if logits.ndim == 1:
        return logits
    if logits.ndim == 2 and logits.shape[1] == 1:
        return np.asarray(logits[:, 0])
    if logits.ndim == 2 and logits.shape[1] == 2:
        return np.asarray(logits[:, 1] - logits[:, 0])
    raise ScorerError(f"{name}: expected one or two logits a pair, got an output of shape {logits.shape}")
