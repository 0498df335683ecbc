"""The last hour of metrics: rates, percentiles, and what falls out of the window."""

from __future__ import annotations

import pytest

from mnemorank.server.metrics_history import MetricsHistory, percentile
from mnemorank.server.observability import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(lambda: 7)


def test_counts_what_happened_between_two_samples(metrics):
    times = iter(range(0, 1000, 10))
    history = MetricsHistory(metrics, clock=lambda: float(next(times)))
    metrics.observe_request("/v1/memories/rerank", 200, 0.02)
    history.sample()
    metrics.observe_request("/v1/memories/rerank", 200, 0.02)
    metrics.observe_request("/v1/index/search", 429, 0.02)
    metrics.observe_request("/rerank", 500, 3.0)
    metrics.observe_request("/health", 200, 50.0)
    metrics.observe_request("/v1/console/health", 200, 50.0)
    metrics.degraded.labels("deadline").inc()
    metrics.cached_pairs.inc(5)
    history.sample()
    report = history.to_dict()
    first = report["points"][0]
    assert (first["seconds"], first["requests"], first["failures"]) == (10, 3, 2)
    assert (first["degraded"], first["cached_pairs"], first["queue"]) == (1, 5, 7)
    assert 0.01 < first["p50"] <= 0.025
    assert 2.5 < first["p99"] <= 5.0
    last = report["points"][-1]
    assert (last["requests"], last["p50"]) == (0, None)
    assert report["total"]["requests"] == 3


def test_forgets_what_is_older_than_an_hour(metrics):
    times = iter(float(minute * 60) for minute in range(1000))
    history = MetricsHistory(metrics, interval_seconds=60, clock=lambda: next(times))
    history.sample()
    metrics.observe_request("/rerank", 200, 0.1)
    history.sample()
    assert history.to_dict()["total"]["requests"] == 1
    for _ in range(100):
        history.sample()
    report = history.to_dict()
    assert report["total"]["requests"] == 0
    assert report["total"]["seconds"] <= 3700


def test_a_moment_after_a_sample_makes_no_peak(metrics):
    times = iter([0.0, 10.0, 10.1])
    history = MetricsHistory(metrics, clock=lambda: next(times))
    history.sample()
    history.sample()
    assert [round(point["seconds"], 1) for point in history.to_dict()["points"]] == [10.1]


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [([0, 0, 0], 0.5, None), ([4, 4, 4], 0.5, 0.5), ([0, 4, 4], 0.5, 2.0), ([0, 0, 4], 0.5, 3.0), ([], 0.5, None)],
)
def test_percentiles_are_interpolated(counts, share, expected):
    assert percentile([1.0, 3.0, float("inf")][: len(counts)], counts, share) == expected
