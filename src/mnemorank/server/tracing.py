"""OpenTelemetry spans, if asked for (`--otel`, extra `otel`). Spans never carry texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from mnemorank._version import __version__
from mnemorank.errors import MissingExtraError

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
