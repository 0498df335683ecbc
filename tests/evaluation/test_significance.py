"""Intervals and tests, against exact counts and known behavior."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from mnemorank.evaluation.significance import compare, interval, randomization_test


def test_randomization_test_agrees_with_all_sign_flips():
    difference = np.array([0.3, 0.1, -0.05, 0.2, 0.25, 0.1, -0.1, 0.15])
    exact = np.mean([abs(np.dot(signs, difference)) >= difference.sum() - 1e-9 for signs in product((1, -1), repeat=8)])
    assert randomization_test(difference, 20_000) == pytest.approx(exact, abs=0.01)


def test_equal_values_do_not_differ():
    values = np.array([0.1, 0.5, 0.9])
    result = compare(values, values)
    assert (result.p, result.wins, result.losses, result.ties) == (1.0, 0, 0, 3)
    assert result.difference.low == result.difference.high == 0


def test_a_clear_difference_with_missing_values():
    rng = np.random.default_rng(1)
    b = rng.random(200) * 0.5
    a = b + 0.2
    a[0] = np.nan
    result = compare(a, b)
    assert (result.wins, result.losses, result.ties) == (199, 0, 0)
    assert result.p < 0.001
    assert result.difference.mean == pytest.approx(0.2)


def test_the_interval_covers_the_mean_about_as_often_as_it_should():
    rng = np.random.default_rng(2)
    covered = [
        spread.low <= 0.5 <= spread.high for spread in (interval(rng.random(60), resamples=400) for _ in range(200))
    ]
    assert 0.88 <= np.mean(covered) <= 1.0


def test_the_interval_of_many_questions_is_close_to_the_normal_one():
    values = np.random.default_rng(3).random(20_000)
    spread = interval(values, resamples=600)
    half = 1.96 * values.std() / np.sqrt(len(values))
    assert spread.high - spread.low == pytest.approx(2 * half, rel=0.15)


def test_the_interval_of_no_values_is_nan():
    assert np.isnan(interval(np.array([np.nan])).mean)


def test_more_resamples_allow_smaller_p_values():
    base = np.zeros(40)
    better = np.random.default_rng(4).random(40) + 0.1
    assert compare(better, base).p == pytest.approx(1 / 5001)
    more = compare(better, base, resamples=100_000)
    assert more.p == pytest.approx(1 / 100_001)
    assert more.difference == compare(better, base).difference
