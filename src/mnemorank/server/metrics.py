"""Prometheus metrics, one registry an app. The `te_*` names are those of text-embeddings-inference."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from mnemorank.scorers.base import Batch

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_PAIRS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """:param waiting_pairs: reads the length of the queue when metrics are asked for."""

    def __init__(self, waiting_pairs: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("mnemorank_requests", "Requests answered", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "mnemorank_request_seconds", "Time to answer", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.under_way = Gauge("mnemorank_requests_under_way", "Requests being answered", registry=self.registry)
        self.pairs = Counter("mnemorank_pairs", "Pairs scored", registry=self.registry)
        self.known_pairs = Counter("mnemorank_known_pairs", "Pairs not scored: remembered", registry=self.registry)
        self.tokens = Counter("mnemorank_tokens", "Tokens scored, without padding", registry=self.registry)
        self.padded = Counter("mnemorank_padded_tokens", "Tokens scored, with padding", registry=self.registry)
        self.batch_tokens = Histogram(
            "mnemorank_batch_tokens", "Padded tokens in a batch", buckets=_TOKENS, registry=self.registry
        )
        self.batch_pairs = Histogram(
            "mnemorank_batch_pairs", "Pairs in a batch", buckets=_PAIRS, registry=self.registry
        )
        padding = Gauge("mnemorank_padding_share", "Share of padding among all tokens so far", registry=self.registry)
        padding.set_function(self._padding_share)
        queue = Gauge("mnemorank_queue_pairs", "Pairs that wait to be scored", registry=self.registry)
        queue.set_function(waiting_pairs)
        self.degraded = Counter(
            "mnemorank_degraded", "Answers in first-stage order, in part or whole", ["reason"], registry=self.registry
        )
        self.events_lost = Counter("mnemorank_events_lost", "Events the log did not take", registry=self.registry)
        self.swaps = Counter("mnemorank_swaps", "Model swaps", ["outcome"], registry=self.registry)
        self.model = Gauge(
            "mnemorank_model_info", "The model served", ["name", "version", "fingerprint"], registry=self.registry
        )
        self._tei = _TeiMetrics(self.registry, waiting_pairs)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)
        if route == "/rerank":
            self._tei.observe(status, seconds)

    def observe_batch(self, batch: Batch) -> None:
        self.pairs.inc(batch.pairs)
        self.tokens.inc(batch.tokens)
        self.padded.inc(batch.padded)
        self.batch_tokens.observe(batch.padded)
        self.batch_pairs.observe(batch.pairs)
        self._tei.batch_size.observe(batch.pairs)
        self._tei.batch_tokens.observe(batch.tokens)

    def show_model(self, name: str, version: str, fingerprint: str) -> None:
        self.model.clear()
        self.model.labels(name, version, fingerprint).set(1)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def _padding_share(self) -> float:
        tokens, padded = (
            self.registry.get_sample_value(f"mnemorank_{name}_total") or 0.0 for name in ("tokens", "padded_tokens")
        )
        return 1 - tokens / padded if padded else 0.0


class _TeiMetrics:
    """TEI names its counters without `_total`, so here they are gauges that only rise."""

    def __init__(self, registry: CollectorRegistry, waiting_pairs: Callable[[], int]) -> None:
        self.count = Gauge("te_request_count", "Requests to /rerank", ["method"], registry=registry)
        self.success = Gauge("te_request_success", "Requests to /rerank that succeeded", ["method"], registry=registry)
        self.failure = Gauge("te_request_failure", "Requests to /rerank that failed", ["err"], registry=registry)
        self.duration = Histogram("te_request_duration", "Time to answer /rerank", buckets=_SECONDS, registry=registry)
        self.batch_size = Histogram("te_batch_next_size", "Pairs in a batch", buckets=_PAIRS, registry=registry)
        self.batch_tokens = Histogram("te_batch_next_tokens", "Tokens in a batch", buckets=_TOKENS, registry=registry)
        Gauge("te_queue_size", "Pairs that wait", registry=registry).set_function(waiting_pairs)

    def observe(self, status: int, seconds: float) -> None:
        self.count.labels("single").inc()
        self.duration.observe(seconds)
        if status < 400:
            self.success.labels("single").inc()
        else:
            self.failure.labels(_TEI_ERRORS.get(status, "validation")).inc()


_TEI_ERRORS = {400: "empty", 424: "inference", 429: "overloaded", 503: "unhealthy"}
