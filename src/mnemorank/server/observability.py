"""Structured logs: a JSON object a line, on standard error."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from mnemorank._version import __version__
from mnemorank.errors import ArtifactError, MissingExtraError
from mnemorank.scorers.protocol import Batch
from mnemorank.server.settings import Settings

logger = logging.getLogger(__name__)

# Errors whose words are about code and files; others may quote a request.
_HARMLESS = (TypeError, AttributeError, NameError, ImportError, RecursionError, ArtifactError)
_MOST_CAUSES = 10


class JsonFormatter(logging.Formatter):
    """Time, level, message and the fields that came with the record (`extra={"fields": {…}}`)."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = trace_of(record.exc_info[1])
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send the process's logs to standard error as JSON. For the command alone; the library never configures logs."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_failure(log: logging.Logger, message: str, error: BaseException, **fields: Any) -> None:
    """Log an error by what and where it is, without its own words, whatever formatter is in use."""
    fields = {**fields, "exception": trace_of(error)}
    log.error("%s: %s", message, reason_of(error), extra={"fields": fields})


def reason_of(error: BaseException) -> str:
    """What failed, without what may be quoted from a request: databases repeat the values they choke on."""
    cause = getattr(error, "orig", None) or error  # a database driver's own error, inside SQLAlchemy's
    code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
    said = cause.strerror if isinstance(cause, OSError) else str(cause) if isinstance(cause, _HARMLESS) else code
    return f"{type(cause).__name__}: {said}" if said else type(cause).__name__


def trace_of(error: BaseException) -> str:
    """A traceback, causes first, with `reason_of` in place of each error's words."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < _MOST_CAUSES:
        parts.append("".join(traceback.format_tb(cause.__traceback__)) + reason_of(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n\n".join(reversed(parts))


def announce(settings: Settings, port: int) -> None:
    """Log what the server was started with, without secrets."""
    logger.info("starting", extra={"fields": {"version": __version__, "settings": {**settings.shown(), "port": port}}})


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


# The words of an error may quote a request.
_WITHOUT_WORDS = {"record_exception": False, "set_status_on_exception": False}


class Span(Protocol):
    def finish(self, status: int, notes: Mapping[str, Any]) -> None: ...


class _NoSpan:
    def finish(self, status: int, notes: Mapping[str, Any]) -> None:
        return


class Tracing:
    """:param tracer: an OpenTelemetry tracer; None makes no spans."""

    def __init__(self, tracer: Any = None) -> None:
        self._tracer = tracer

    @contextmanager
    def request(self, scope: Mapping[str, Any], request_id: str) -> Iterator[Span]:
        if self._tracer is None:
            yield _NoSpan()
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method = str(scope["method"])
        options = {"context": extract(headers), "kind": SpanKind.SERVER, **_WITHOUT_WORDS}
        with self._tracer.start_as_current_span(method, **options) as span:
            span.set_attribute("http.request.method", method)
            span.set_attribute("mnemorank.request_id", request_id)
            yield _OtelSpan(span, scope)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """A span within the request's, such as `score`."""
        if self._tracer is None:
            yield
            return
        with self._tracer.start_as_current_span(name, **_WITHOUT_WORDS) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                raise


class _OtelSpan:
    def __init__(self, span: Any, scope: Mapping[str, Any]) -> None:
        self._span, self._scope = span, scope

    def finish(self, status: int, notes: Mapping[str, Any]) -> None:
        route = getattr(self._scope.get("route"), "path", None)
        if route:
            self._span.update_name(f"{self._scope['method']} {route}")
            self._span.set_attribute("http.route", route)
        self._span.set_attribute("http.response.status_code", status)
        for name, value in notes.items():
            if name != "query" and isinstance(value, (str, int, float)):
                self._span.set_attribute(f"mnemorank.{name}", value)


def open_tracing() -> Tracing:
    """Spans sent by OTLP over HTTP, as the `OTEL_*` environment variables say."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtraError(f"--otel needs `pip install 'mnemorank[otel]'` ({error})") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "mnemorank"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Tracing(provider.get_tracer("mnemorank", __version__))
