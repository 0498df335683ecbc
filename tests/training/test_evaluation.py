"""What calibration is fitted on."""

from __future__ import annotations

import numpy as np
import pytest

from mnemorank._internal.arrays import sigmoid
from mnemorank.data.examples import Candidate, Example
from mnemorank.memory.memory import Memory
from mnemorank.training.evaluation import calibrate, measure_bm25


def graded(number: int) -> Example:
    candidates = (Candidate(Memory(f"cat number {number}"), 1.0), *[Candidate(Memory("a dog"), 0.2)] * 4)
    return Example(str(number), f"cat number {number}", candidates, relevant_from=0.5)


def test_relevance_is_calibrated_to_what_counts_as_relevant():
    """Pairs graded .2 are "on topic, no answer": however many there are, none of them is relevant."""
    measured = measure_bm25([graded(number) for number in range(50)])
    assert measured.labels.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0] * 50
    fitted = calibrate(measured)
    right, wrong = sigmoid(fitted.scale * np.array([measured.logits[0], measured.logits[1]]) + fitted.bias)
    assert right > 0.95
    assert wrong == pytest.approx(0.0, abs=0.02)
