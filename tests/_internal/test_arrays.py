"""Numeric helpers, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mnemorank._internal.arrays import spearman


def test_spearman():
    assert spearman(np.array([1.0, 2, 3]), np.array([10.0, 30, 20])) == pytest.approx(0.5)
    assert spearman(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])) == 0
