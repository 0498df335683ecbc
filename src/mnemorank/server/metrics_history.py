"""The last hour of the server's metrics, in memory, for the console."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from mnemorank.server.observability import Metrics

_SECONDS = 3600.0
_INTERVAL_SECONDS = 10.0
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
# Routes that rank or score; the others, such as /health, would hide how long these take.
_RANKING_ROUTES = ("/rerank", "/score", "/search")


@dataclass(frozen=True, slots=True)
class _Sample:
    """The metrics at one time. All but the last two are totals since the start.

    :param buckets: upper bound in seconds → number of requests that took at most that long.
    """

    time: float
    requests: float
    failures: float
    pairs: float
    cached_pairs: float
    degraded: float
    buckets: dict[float, float]
    queue: float
    active: float


class MetricsHistory:
    """Samples of the metrics at regular intervals, the oldest dropped after an hour.

    :param clock: returns seconds since 1970.
    """

    def __init__(
        self,
        metrics: Metrics,
        interval_seconds: float = _INTERVAL_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._metrics = metrics
        self._interval = interval_seconds
        self._clock = clock
        self._samples: deque[_Sample] = deque(maxlen=int(_SECONDS / interval_seconds) + 1)

    async def record(self) -> None:
        """Take samples until canceled."""
        while True:
            self.sample()
            await asyncio.sleep(self._interval)

    def sample(self) -> None:
        self._samples.append(self._read())

    def to_dict(self) -> dict[str, Any]:
        """Return what happened between each two samples, and in total, up to now."""
        samples, now = list(self._samples), self._read()
        if len(samples) > 1 and now.time - samples[-1].time < self._interval / 2:
            samples.pop()  # rates over a moment would be all peaks
        samples.append(now)
        points = [_difference(before, after) for before, after in pairwise(samples)]
        return {"interval_seconds": self._interval, "total": _difference(samples[0], samples[-1]), "points": points}

    def _read(self) -> _Sample:
        requests = failures = 0.0
        for name, labels, value in self._values(self._metrics.requests):
            if name.endswith("_total") and _is_ranking(labels["route"]):
                requests += value
                failures += value * (labels["status"] >= "500" or labels["status"] == "429")
        buckets: dict[float, float] = {}
        for name, labels, value in self._values(self._metrics.seconds):
            if name.endswith("_bucket") and _is_ranking(labels["route"]):
                bound = float(labels["le"])
                buckets[bound] = buckets.get(bound, 0.0) + value
        value_of = self._metrics.registry.get_sample_value
        return _Sample(
            time=self._clock(),
            requests=requests,
            failures=failures,
            pairs=value_of("mnemorank_pairs_total") or 0.0,
            cached_pairs=value_of("mnemorank_cached_pairs_total") or 0.0,
            degraded=sum(value for name, _, value in self._values(self._metrics.degraded) if name.endswith("_total")),
            buckets=buckets,
            queue=value_of("mnemorank_queue_pairs") or 0.0,
            active=value_of("mnemorank_active_requests") or 0.0,
        )

    @staticmethod
    def _values(metric: Any) -> Iterator[tuple[str, dict[str, str], float]]:
        for family in metric.collect():
            for sample in family.samples:
                yield sample.name, sample.labels, sample.value


def percentile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """Estimate a percentile from a histogram, linearly within its bucket, as Prometheus does; None if it is empty.

    :param bounds: the upper bounds of the buckets, ascending; the last may be infinite.
    :param counts: how many values are at most as large as each bound.
    """
    if not counts or counts[-1] <= 0:
        return None
    wanted = share * counts[-1]
    lower = below = 0.0
    for bound, count in zip(bounds, counts, strict=True):
        if count >= wanted:
            if bound == float("inf"):
                return lower
            return lower + (bound - lower) * ((wanted - below) / (count - below) if count > below else 0.0)
        lower, below = bound, count
    return lower


def _difference(before: _Sample, after: _Sample) -> dict[str, Any]:
    bounds = sorted(after.buckets)
    counts = [after.buckets[bound] - before.buckets.get(bound, 0.0) for bound in bounds]
    return {
        "time": after.time,
        "seconds": after.time - before.time,
        **{
            name: getattr(after, name) - getattr(before, name)
            for name in ("requests", "failures", "pairs", "cached_pairs", "degraded")
        },
        **{name: percentile(bounds, counts, share) for name, share in _PERCENTILES.items()},
        "queue": after.queue,
        "active": after.active,
    }


def _is_ranking(route: str) -> bool:
    return route.endswith(_RANKING_ROUTES)
