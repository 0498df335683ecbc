"""Small numeric functions on numpy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def mean_ranks(values: Floats) -> Floats:
    """Return ranks from 0 (lowest); equal values share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray((ends - (counts + 1) / 2)[inverse], dtype=np.float64)


def log_sigmoid(x: Floats) -> Floats:
    """Return the logarithm of the sigmoid, precise where the sigmoid itself rounds to 0 or 1."""
    return np.minimum(x, 0.0) - np.log1p(np.exp(-np.abs(x)))


def sigmoid(logits: Floats) -> Floats:
    """Return the logistic function, without overflow; NaN stays NaN."""
    logits = np.asarray(logits, dtype=np.float64)
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1 / (1 + small), small / (1 + small)), dtype=np.float64)


def logit(probabilities: Floats) -> Floats:
    """Return the inverse of `sigmoid`, with 0 and 1 clipped by 1e-12 to stay finite."""
    clipped = np.clip(np.asarray(probabilities, dtype=np.float64), 1e-12, 1 - 1e-12)
    return np.asarray(np.log(clipped) - np.log1p(-clipped), dtype=np.float64)


def spearman(first: Floats, second: Floats) -> float:
    """Return the rank correlation; 0 if one of the arrays is constant or has fewer than two values."""
    a, b = mean_ranks(first), mean_ranks(second)
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
