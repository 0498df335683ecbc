"""Is one ranking really better than another? Paired, over questions; the same numbers on every run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mnemorank._internal.arrays import Floats

RESAMPLES = 5000
SEED = 20240305


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """A against B on the same questions.

    :param difference: mean of A − B, with its interval.
    :param p: two-sided p-value of the paired randomization test.
    """

    difference: Interval
    p: float
    wins: int
    losses: int
    ties: int


def interval(values: Floats, resamples: int = RESAMPLES) -> Interval:
    """Percentile bootstrap over questions; NaN values are left out."""
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
    """:param a: a measure of the first contestant, one value a question; `b` the second's, in the same order.
    :param resamples: of the test, whose p-value is never below 1 / (resamples + 1). The interval
        needs no more of them than by default.
    """
    both = ~(np.isnan(a) | np.isnan(b))
    difference = a[both] - b[both]
    clear = np.abs(difference) > 1e-9
    return Comparison(
        difference=interval(difference, min(resamples, RESAMPLES)),
        p=randomization_test(difference, resamples),
        wins=int((clear & (difference > 0)).sum()),
        losses=int((clear & (difference < 0)).sum()),
        ties=int((~clear).sum()),
    )


def randomization_test(difference: Floats, resamples: int = RESAMPLES) -> float:
    """Two-sided p-value: how often would random signs give a mean difference as large? Never 0: (k + 1) / (n + 1)."""
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
    """Blocks of resamples that keep a matrix of random numbers within some 16 MB."""
    block = max(2_000_000 // max(width, 1), 1)
    for start in range(0, resamples, block):
        yield min(block, resamples - start)
