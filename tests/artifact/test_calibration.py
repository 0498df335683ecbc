import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank._internal.arrays import logit, sigmoid
from mnemorank.artifact.calibration import fit_platt, log_odds
from mnemorank.artifact.manifest import Calibration

finite = st.floats(-1e3, 1e3)


def test_sigmoid_does_not_overflow():
    values = sigmoid(np.array([-1e6, 0.0, 1e6, np.nan]))
    assert values[0] == 0
    assert values[1] == 0.5
    assert values[2] == 1
    assert math.isnan(values[3])


@given(st.lists(finite, min_size=2), st.floats(0.01, 100), finite)
def test_calibration_keeps_the_order(raw, scale, bias):
    raw = np.array(sorted(raw))
    assert (np.diff(log_odds(raw, "logit", Calibration(scale, bias))) >= 0).all()


@given(st.lists(st.floats(0, 1), min_size=2))
def test_probabilities_keep_their_order_and_stay_finite(raw):
    odds = log_odds(np.array(sorted(raw)), "probability", Calibration())
    assert np.isfinite(odds).all()
    assert (np.diff(odds) >= 0).all()


def test_logit_is_the_inverse():
    np.testing.assert_allclose(sigmoid(logit(np.array([0.1, 0.5, 0.9]))), [0.1, 0.5, 0.9])


def test_platt_recovers_the_parameters():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, 20_000)
    labels = (rng.random(20_000) < sigmoid(0.5 * logits - 1)).astype(float)
    fitted = fit_platt(logits, labels)
    assert fitted.scale == pytest.approx(0.5, abs=0.05)
    assert fitted.bias == pytest.approx(-1, abs=0.1)


def test_platt_of_separable_or_inverted_scores_is_finite_and_increasing():
    assert np.isfinite(fit_platt(np.array([-1.0, 1.0]), np.array([0.0, 1.0])).scale)
    assert fit_platt(np.array([-1.0, 1.0]), np.array([1.0, 0.0])).scale > 0


@pytest.mark.parametrize("spread", [1e-4, 1.0, 300.0])
def test_platt_of_separable_scores_does_not_diverge(spread):
    """Without step halving, Newton's method ends with relevance 1 for all pairs."""
    logits = np.concatenate([np.linspace(-1, -0.5, 80), np.linspace(0.5, 1, 20)]) * spread + 7
    labels = np.repeat([0.0, 1.0], [80, 20])
    fitted = fit_platt(logits, labels)
    relevance = sigmoid(fitted.scale * logits + fitted.bias)
    assert relevance[:80].max() < 0.1
    assert relevance[80:].min() > 0.8


def test_platt_needs_one_label_per_score():
    with pytest.raises(ValueError, match="label"):
        fit_platt(np.array([1.0]), np.array([1.0, 0.0]))
