from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mnemorank import InputError, Memory, Moment, Options
from mnemorank.ranking.factors import factors, proof, recency, temporal
from mnemorank.ranking.first_stage import bm25_trust, evidence, standardize

NOW = Moment(2025, 1, 1)


def dated(start, end=None, kind=None):
    return Memory("x", occurred_start=Moment.parse(start), occurred_end=Moment.parse(end) if end else None, type=kind)


def test_linear_recency():
    linear = Options(recency="linear")
    assert recency(dated("2025-01-01T00:00:00Z"), linear, NOW) == pytest.approx(1)
    half_a_year = recency(dated("2024-07-02T12:00:00Z"), linear, NOW)
    assert half_a_year == pytest.approx(1 - 182.5 / 365, abs=0.01)
    assert recency(dated("2001-01-01"), linear, NOW) == 0.1
    assert recency(Memory("x"), linear, NOW) == 0.5


def test_exponential_recency_halves_in_ninety_days():
    fusion = Options(recency="exponential")
    assert recency(dated("2024-10-03T00:00:00Z"), fusion, NOW) == pytest.approx(0.5)


def test_a_year_counts_by_its_middle():
    """The Hindsight reranker reads the year 2024 as January 1st, so that it looks older than 2024-02-01."""
    linear = Options(recency="linear")
    assert recency(dated("2024"), linear, NOW) > recency(dated("2024-02-01"), linear, NOW)


def test_future_dates_are_as_recent_as_now():
    assert recency(dated("2031"), Options(recency="linear"), NOW) == 1


def test_memories_inside_the_range_are_never_lowered():
    asked = Moment(2024, 3, 1), Moment(2024, 3, 30)
    assert temporal(dated("2024-03-20T00:00:00Z", "2024-03-20T00:00:00Z"), asked, NOW) == pytest.approx(1 - 2 / 15)
    assert temporal(dated("2024-03-01T00:00:00Z", "2024-03-01T00:00:00Z"), asked, NOW) == pytest.approx(0.5)
    assert temporal(dated("2024-03-30", "2024-03-30"), asked, NOW) > 0.5
    assert 0 < temporal(dated("2024-02-25", "2024-02-25"), asked, NOW) < 0.5
    assert temporal(dated("2024-06-01", "2024-06-02"), asked, NOW) == 0
    assert temporal(Memory("x"), asked, NOW) == 0.5


def test_ongoing_states_count_as_inside_the_range():
    asked = Moment(2024, 3), Moment(2024, 3)
    assert temporal(dated("2020", "2024-12-31"), asked, NOW) == 1
    assert temporal(dated("2020", kind="world"), asked, NOW) == 1
    assert temporal(dated("2020-01-01", "2021-01-01"), asked, NOW) == 0


def test_a_single_day_as_range():
    day = Moment(2024, 3, 5)
    assert temporal(dated("2024-03-05", "2024-03-05"), (day, day), NOW) == 1


def test_proof():
    assert proof(None) == proof(0) == proof(1) == 0.5
    assert proof(10) == pytest.approx(0.5 + np.log(10) / 10)
    assert proof(10**9) == 1


def test_factors_are_neutral_without_data():
    values = factors([Memory("x")], Options(), NOW, None)
    assert {name: float(value[0]) for name, value in values.items()} == {"proof": 1, "trust": 1}


def test_trust_and_recency_multiply_as_in_the_hindsight_reranker():
    memory = Memory("x", trust=1.0, occurred_start=Moment.parse("2025-01-01T00:00:00Z"))
    values = factors([memory], Options(recency="linear"), NOW, None)
    assert values["trust"][0] == pytest.approx(1.1)
    assert values["recency"][0] == pytest.approx(1.1)


def test_standardize():
    np.testing.assert_allclose(standardize(np.array([1.0, 2.0, 3.0])), [-1.224745, 0, 1.224745], atol=1e-6)
    np.testing.assert_allclose(standardize(np.array([1.0, 50.0, 3.0]), "rank"), [-1.224745, 1.224745, 0], atol=1e-6)
    assert list(standardize(np.array([5.0, 5.0]))) == [0, 0]
    assert list(standardize(np.array([np.nan, 5.0]))) == [0, 0]


def test_a_missing_score_adds_no_evidence():
    worth = evidence(np.array([np.nan, 1.0, 3.0]), 0.5)
    assert worth[0] == 0
    assert worth[1] < 0 < worth[2]


def test_a_small_pool_counts_less():
    np.testing.assert_allclose(evidence(np.array([1.0, 3.0]), 0.5), [-0.1, 0.1])
    full = np.array([1.0] * 10 + [3.0] * 10)
    np.testing.assert_allclose(evidence(full, 0.5), [-0.5] * 10 + [0.5] * 10)


def test_bm25_trust_falls_with_query_length():
    assert bm25_trust("where does Ana live now", 8) == bm25_trust("", 8) == 1
    long = " ".join(f"term{n}" for n in range(32))
    assert bm25_trust(" ".join(long.split()[:8]), 8) == 1
    assert bm25_trust(long, 8) == 0.25
    assert bm25_trust(long, None) == 1
    assert bm25_trust("我的狗是什么品种的呢今天", 8) == 1  # twelve characters, six words or so


@pytest.mark.parametrize(
    "bad",
    [
        {"recency": "fast"},
        {"recency_days": 0},
        {"proof_weight": 2},
        {"weights": {"first_stage": -1}},
        {"first_stage_method": "x"},
    ],
)
def test_bad_options_are_named(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Options(**bad)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30), st.sampled_from(["score", "rank"]))
def test_standardize_is_finite_and_monotone(scores, method):
    values = standardize(np.array(scores), method)
    assert np.isfinite(values).all()
    known = [(s, v) for s, v in zip(scores, values, strict=True) if np.isfinite(s)]
    ordered = [v for _, v in sorted(known)]
    assert all(a <= b + 1e-9 for a, b in pairwise(ordered))
