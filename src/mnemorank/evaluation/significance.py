"""Confidence intervals and significance tests over questions, with fixed seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mnemorank._internal.arrays import Floats

RESAMPLES = 5000
SEED = 20240305


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95% bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """System A compared with system B on the same questions.

    :param difference: the mean of A − B, with its interval.
    :param p: two-sided p-value of the paired randomization test.
    """

    difference: Interval
    p: float
    wins: int
    losses: int
    ties: int


def interval(values: Floats, resamples: int = RESAMPLES) -> Interval:
    """Return the percentile bootstrap interval over questions; NaN values are ignored."""
    values = values[~np.isnan(values)]
    if not len(values):
        return Interval(float("nan"), float("nan"), float("nan"))
    rng = np.random.default_rng(SEED)
    means = np.concatenate(
        [
            values[rng.integers(0, len(values), (rows, len(values)))].mean(axis=1)
            for rows in _rows(resamples, len(values))
        ]
    )
    low, high = np.percentile(means, [2.5, 97.5])
    return Interval(float(values.mean()), float(low), float(high))


def compare(a: Floats, b: Floats, resamples: int = RESAMPLES) -> Comparison:
    """Compare two systems by a metric.

    :param a: the metric of the first system, one value per question; NaN values are ignored.
    :param resamples: the number of resamples of the test, whose p-value is never below 1 / (resamples + 1). The
        interval uses the default number at most.
    """
    is_known = ~(np.isnan(a) | np.isnan(b))
    difference = a[is_known] - b[is_known]
    is_different = np.abs(difference) > 1e-9
    return Comparison(
        difference=interval(difference, min(resamples, RESAMPLES)),
        p=randomization_test(difference, resamples),
        wins=int((is_different & (difference > 0)).sum()),
        losses=int((is_different & (difference < 0)).sum()),
        ties=int((~is_different).sum()),
    )


def randomization_test(difference: Floats, resamples: int = RESAMPLES) -> float:
    """Return the two-sided p-value of the paired randomization test: the share of random signs with as large a mean."""
    difference = difference[np.abs(difference) > 1e-9]
    if not len(difference):
        return 1.0
    rng = np.random.default_rng(SEED)
    observed = abs(difference.sum()) - 1e-9
    larger = 0
    for rows in _rows(resamples, len(difference)):
        signs = rng.integers(0, 2, (rows, len(difference)), dtype=np.int8) * 2 - 1
        larger += int((np.abs(signs @ difference) >= observed).sum())
    return (larger + 1) / (resamples + 1)


def _rows(resamples: int, width: int) -> Iterator[int]:
    """Yield sizes of blocks of resamples whose matrix of random numbers stays within about 16 MB."""
    block = max(2_000_000 // max(width, 1), 1)
    for start in range(0, resamples, block):
        yield min(block, resamples - start)
