"""Calibration: from raw model scores to log-odds of relevance."""

from __future__ import annotations

import numpy as np

from mnemorank._internal.arrays import Floats, logit, sigmoid
from mnemorank.artifact.manifest import Calibration, Manifest


def log_odds(raw: Floats, kind: str, calibration: Calibration) -> Floats:
    """Return calibrated log-odds of relevance, strictly monotone in the scores. NaN (not scored) stays NaN.

    :param kind: what the model's scores are, `logit` or `probability`.
    """
    logits = logit(raw) if kind == "probability" else np.asarray(raw, dtype=np.float64)
    return np.asarray(calibration.scale * logits + calibration.bias, dtype=np.float64)


def model_odds(raw: Floats, manifest: Manifest) -> Floats:
    """Return log-odds of relevance for the raw scores of a model, calibrated as its manifest says."""
    return log_odds(raw, manifest.score_kind, manifest.calibration)


def fit_platt(logits: Floats, labels: Floats, steps: int = 100) -> Calibration:
    """Fit scale and bias on the logistic loss with Platt's smoothed targets, by Newton's method with step halving.

    The scale stays above 0, so that calibration never reverses a ranking.

    :param labels: from 0 to 1.
    """
    logits, labels = np.asarray(logits, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if logits.shape != labels.shape or logits.ndim != 1 or not len(logits):
        raise ValueError(f"expected one label per score, got {logits.shape} scores and {labels.shape} labels")
    positive = labels.sum()
    high, low = (positive + 1) / (positive + 2), 1 / (len(labels) - positive + 2)
    targets = low + labels * (high - low)
    # Standardized scores and step halving keep Newton's method from diverging on separable data.
    mean, deviation = float(logits.mean()), max(float(logits.std()), 1e-12)
    design = np.stack([(logits - mean) / deviation, np.ones_like(logits)], axis=1)

    def loss(parameters: Floats) -> float:
        margin = design @ parameters
        return float((np.logaddexp(0, margin) - targets * margin).sum())

    weights = np.array([0.0, 0.0])
    for _ in range(steps):
        predicted = sigmoid(design @ weights)
        gradient = design.T @ (predicted - targets)
        curvature = design.T @ (design * (predicted * (1 - predicted))[:, None]) + 1e-9 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        while loss(weights - step) > loss(weights) and np.abs(step).max() > 1e-10:
            step = step / 2
        weights = weights - step
        if np.abs(step).max() < 1e-10:
            break
    scale = max(float(weights[0]) / deviation, 1e-3)
    return Calibration(scale=scale, bias=float(weights[1]) - scale * mean)
