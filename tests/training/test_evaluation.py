"""Calibration on the dev data."""

from __future__ import annotations

import numpy as np
import pytest

from mnemorank._internal.arrays import sigmoid
from mnemorank.data.examples import Candidate, Example
from mnemorank.memory.memory import Memory
from mnemorank.training.evaluation import calibrate, evaluate_bm25


def graded(number: int) -> Example:
    candidates = (Candidate(Memory(f"cat number {number}"), 1.0), *[Candidate(Memory("a dog"), 0.2)] * 4)
    return Example(str(number), f"cat number {number}", candidates, relevant_from=0.5)


def test_calibration_is_fitted_to_binary_relevance():
    """A label of .2 means "on topic, no answer", not "relevant in one of five cases"."""
    evaluation = evaluate_bm25([graded(number) for number in range(50)])
    assert evaluation.relevant.tolist() == [1.0, 0.0, 0.0, 0.0, 0.0] * 50
    fitted = calibrate(evaluation)
    positive, negative = sigmoid(fitted.scale * np.array([evaluation.logits[0], evaluation.logits[1]]) + fitted.bias)
    assert positive > 0.95
    assert negative == pytest.approx(0.0, abs=0.02)
