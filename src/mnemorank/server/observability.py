"""Logs, metrics and traces. None of them contain texts of requests unless `log_texts` is set."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from fastapi import FastAPI
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from mnemorank._version import __version__
from mnemorank.errors import ArtifactError, MissingExtraError
from mnemorank.scorers.protocol import Batch
from mnemorank.server.settings import ServerSettings

logger = logging.getLogger(__name__)

# Errors whose messages are about code and files. The messages of other errors may quote a request.
_SAFE_ERRORS = (TypeError, AttributeError, NameError, ImportError, RecursionError, ArtifactError)
_MAX_CAUSES = 10


class JsonFormatter(logging.Formatter):
    """Formats a record as a line of JSON, with the fields of `extra={"fields": {...}}`."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            line["exception"] = format_traceback(record.exc_info[1])
        return json.dumps(line, default=str)


def configure_logging(level: str) -> None:
    """Send the logs of the process to standard error as JSON. For the command; the library never configures logging."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("uvicorn.access", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def log_failure(log: logging.Logger, message: str, error: BaseException, **fields: Any) -> None:
    """Log the type and the traceback of an error without its message, with any formatter."""
    fields = {**fields, "exception": format_traceback(error)}
    log.error("%s: %s", message, reason_of(error), extra={"fields": fields})


def reason_of(error: BaseException) -> str:
    """Describe an error without quoting a request: databases repeat the values that they refuse."""
    cause = getattr(error, "orig", None) or error  # the database driver's error inside SQLAlchemy's
    code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None)
    detail = cause.strerror if isinstance(cause, OSError) else str(cause) if isinstance(cause, _SAFE_ERRORS) else code
    return f"{type(cause).__name__}: {detail}" if detail else type(cause).__name__


def format_traceback(error: BaseException) -> str:
    """Format a traceback, causes first, with `reason_of` in place of each message."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < _MAX_CAUSES:
        parts.append("".join(traceback.format_tb(cause.__traceback__)) + reason_of(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return "\n\n".join(reversed(parts))


def log_start(settings: ServerSettings, port: int) -> None:
    """Log the settings without secrets."""
    fields = {"version": __version__, "settings": {**settings.redacted(), "port": port}}
    logger.info("starting", extra={"fields": fields})


CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKENS = (32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_PAIRS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """The Prometheus metrics of a server.

    :param waiting_pairs: returns the current length of the queue.
    """

    def __init__(self, waiting_pairs: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("mnemorank_requests", "Completed requests", ["route", "status"], registry=self.registry)
        self.seconds = Histogram(
            "mnemorank_request_seconds", "Duration of requests", ["route"], buckets=_SECONDS, registry=self.registry
        )
        self.active_requests = Gauge("mnemorank_active_requests", "Requests in progress", registry=self.registry)
        self.pairs = Counter("mnemorank_pairs", "Pairs scored", registry=self.registry)
        self.cached_pairs = Counter("mnemorank_cached_pairs", "Pairs answered from the cache", registry=self.registry)
        self.tokens = Counter("mnemorank_tokens", "Tokens scored without padding", registry=self.registry)
        self.padded = Counter("mnemorank_padded_tokens", "Tokens scored with padding", registry=self.registry)
        self.batch_tokens = Histogram(
            "mnemorank_batch_tokens", "Padded tokens in a batch", buckets=_TOKENS, registry=self.registry
        )
        self.batch_pairs = Histogram(
            "mnemorank_batch_pairs", "Pairs in a batch", buckets=_PAIRS, registry=self.registry
        )
        padding = Gauge("mnemorank_padding_share", "Share of padding in all tokens so far", registry=self.registry)
        padding.set_function(self._padding_share)
        queue = Gauge("mnemorank_queue_pairs", "Pairs waiting to be scored", registry=self.registry)
        queue.set_function(waiting_pairs)
        self.degraded = Counter("mnemorank_degraded", "Degraded rankings", ["reason"], registry=self.registry)
        self.events_lost = Counter("mnemorank_events_lost", "Events that could not be stored", registry=self.registry)
        self.swaps = Counter("mnemorank_swaps", "Model swaps by outcome", ["outcome"], registry=self.registry)
        self.model = Gauge(
            "mnemorank_model_info", "The served model", ["name", "version", "fingerprint"], registry=self.registry
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
    """Metrics by the names of text-embeddings-inference, whose counters lack `_total` and so are gauges here."""

    def __init__(self, registry: CollectorRegistry, waiting_pairs: Callable[[], int]) -> None:
        self.count = Gauge("te_request_count", "Requests to /rerank", ["method"], registry=registry)
        self.success = Gauge("te_request_success", "Requests to /rerank that succeeded", ["method"], registry=registry)
        self.failure = Gauge("te_request_failure", "Requests to /rerank that failed", ["err"], registry=registry)
        self.duration = Histogram("te_request_duration", "Duration of /rerank", buckets=_SECONDS, registry=registry)
        self.batch_size = Histogram("te_batch_next_size", "Pairs in a batch", buckets=_PAIRS, registry=registry)
        self.batch_tokens = Histogram("te_batch_next_tokens", "Tokens in a batch", buckets=_TOKENS, registry=registry)
        Gauge("te_queue_size", "Pairs waiting to be scored", registry=registry).set_function(waiting_pairs)

    def observe(self, status: int, seconds: float) -> None:
        self.count.labels("single").inc()
        self.duration.observe(seconds)
        if status < 400:
            self.success.labels("single").inc()
        else:
            self.failure.labels(_TEI_ERRORS.get(status, "validation")).inc()


_TEI_ERRORS = {400: "empty", 424: "inference", 429: "overloaded", 503: "unhealthy"}


class Tracing:
    """OpenTelemetry traces.

    :param provider: a `TracerProvider`; None for no traces.
    """

    def __init__(self, provider: Any = None) -> None:
        self._provider = provider

    def instrument(self, app: FastAPI) -> None:
        """Add OpenTelemetry's ASGI middleware, which continues the client's trace."""
        if self._provider is None:
            return
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware

        app.add_middleware(
            OpenTelemetryMiddleware,
            tracer_provider=self._provider,
            exclude_spans=["receive", "send"],
            # The path is the caller's choice; `describe_request` names the route once it is known.
            default_span_details=lambda scope: (scope.get("method", "HTTP"), {}),
            server_request_hook=_remove_query_string,
        )

    def describe_request(self, method: str, route: str, fields: Mapping[str, Any]) -> None:
        """Name the span of the current request by its route and add the log fields, except for texts."""
        if self._provider is None:
            return
        from opentelemetry.trace import get_current_span

        span = get_current_span()
        span.update_name(f"{method} {route}")
        span.set_attribute("http.route", route)
        for name, value in fields.items():
            if name != "query" and isinstance(value, (str, int, float)):
                span.set_attribute(f"mnemorank.{name}", value)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Record a step of a request. Of an error only the type is recorded, since its message may quote a request."""
        if self._provider is None:
            yield
            return
        tracer = self._provider.get_tracer("mnemorank", __version__)
        with tracer.start_as_current_span(name, record_exception=False, set_status_on_exception=False) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                raise


def _remove_query_string(span: Any, scope: Mapping[str, Any]) -> None:
    """Keep the query string, which may name users, out of traces."""
    for name in ("http.url", "http.target", "url.full", "url.query"):
        if name in (span.attributes or {}):
            span.set_attribute(name, "" if name == "url.query" else scope["path"])


def open_tracer_provider() -> Any:
    """Create a provider that exports by OTLP over HTTP, configured by the `OTEL_*` environment variables."""
    try:
        import opentelemetry.instrumentation.asgi  # noqa: F401
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise MissingExtraError(f"--otel needs `pip install 'mnemorank[otel]'` ({error})") from error
    provider = TracerProvider(resource=Resource.create({"service.name": "mnemorank"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider
