"""Middleware around every request: request ids, logging and metrics; origin checks; limits on request bodies."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mnemorank.server.auth import KeyFile, identify
from mnemorank.server.errors import ErrorWriter, Problem, as_problem, error_response
from mnemorank.server.observability import Metrics, Tracing, log_failure
from mnemorank.server.settings import ServerSettings

logger = logging.getLogger("mnemorank.server.requests")

# All request bodies together may hold as much memory as this many of the largest.
_CONCURRENT_BODIES = 16
# How much of a refused body is read before answering, and for how long.
_REFUSED_BYTES, _REFUSED_SECONDS = 64 * 1024, 0.3
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_UNLOGGED_ROUTES = ("/health", "/ready", "/metrics")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_JSON_TYPE = re.compile(r"application/(\S+\+)?json")


class RequestLogger:
    """Gives each request an id, a line in the log and a place in the metrics, and answers unexpected errors."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: Tracing, writers: Mapping[str, ErrorWriter]) -> None:
        self.app, self.metrics, self.tracing, self.writers = app, metrics, tracing, writers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        client_id = Headers(scope=scope).get("x-request-id", "")
        request_id = client_id if _REQUEST_ID.fullmatch(client_id) else uuid4().hex
        log_fields: dict[str, Any] = {}
        scope.setdefault("state", {}).update(request_id=request_id, log_fields=log_fields)
        started = time.monotonic()
        status = 500
        has_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal status, has_started
            if message["type"] == "http.response.start":
                status, has_started = message["status"], True
                self.tracing.describe_request(
                    scope["method"], route_of(scope), {"request_id": request_id, **log_fields}
                )
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        self.metrics.active_requests.inc()
        try:
            await self.app(scope, receive, send_with_id)
        except Exception as error:
            log_failure(logger, "request failed", error, request_id=request_id)
            if not has_started:
                await error_response(self.writers, scope, as_problem(error))(scope, receive, send_with_id)
        finally:
            seconds = time.monotonic() - started
            route = route_of(scope)
            self.metrics.active_requests.dec()
            self.metrics.observe_request(route, status, seconds)
            line = {
                "request_id": request_id,
                "method": scope["method"],
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 1),
                **log_fields,
            }
            level = logging.DEBUG if route in _UNLOGGED_ROUTES else logging.INFO
            logger.log(level, "request", extra={"fields": line})


def route_of(scope: Scope) -> str:
    """Return the path of the route, or `unknown`; callers must not be able to invent metric labels."""
    return str(getattr(scope.get("route"), "path", "unknown"))


class OriginGuard:
    """Without API keys, keeps web pages of other origins from changing anything.

    Browsers state the origin of such requests, or send them as forms. Programs do neither.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, writers: Mapping[str, ErrorWriter]) -> None:
        self.app, self.writers = app, writers
        self.allowed = {origin.lower() for origin in settings.cors_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None
        if scope["type"] == "http" and scope["method"] not in _SAFE_METHODS:
            problem = self._problem(Headers(scope=scope))
        if problem is None:
            await self.app(scope, receive, send)
        else:
            await error_response(self.writers, scope, problem)(scope, receive, send)

    def _problem(self, headers: Headers) -> Problem | None:
        origin = headers.get("origin", "").lower()
        is_same_origin = "://" in origin and origin.partition("://")[2] == headers.get("host", "").lower()
        if origin and not is_same_origin and not self.allowed & {origin, "*"}:
            return Problem(403, "foreign_origin", "origin not allowed; add it to cors_origins to allow its pages")
        content_type = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if not _JSON_TYPE.fullmatch(content_type):
            return Problem(403, "not_json", "expected a content type of application/json")
        return None


class BodyLimiter:
    """Reads the whole body before the app sees the request.

    Refuses bodies of unknown callers, bodies that are too large or too slow, and bodies that together with those of
    other requests would take too much memory.
    """

    def __init__(
        self, app: ASGIApp, settings: ServerSettings, keys: KeyFile | None, writers: Mapping[str, ErrorWriter]
    ) -> None:
        self.app, self.settings, self.keys, self.writers = app, settings, keys, writers
        self._free_bytes = _CONCURRENT_BODIES * settings.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _has_ambiguous_length(Headers(scope=scope)):
            problem = Problem(400, "malformed", "expected either content-length or transfer-encoding, got both")
            await self._refuse(problem, scope, receive, send)
            return
        if scope["method"] in _SAFE_METHODS:
            # A body that nobody reads could keep its connection open forever, byte by byte.
            if _has_body(Headers(scope=scope)):
                problem = Problem(400, "malformed", f"a {scope['method']} request has no body")
                await self._refuse(problem, scope, receive, send)
            else:
                await self.app(scope, receive, send)
            return
        body = bytearray()
        try:
            try:
                identify(Headers(scope=scope), self.keys)
                is_complete = await self._read_in_time(scope, receive, body)
            except Problem as problem:
                await self._refuse(problem, scope, receive, send, is_arriving=bool(body))
                return
            if is_complete:
                scope["state"]["received_at"] = time.monotonic()
                await self.app(scope, _replay(bytes(body), receive), send)
        finally:
            self._free_bytes += len(body)

    async def _read_in_time(self, scope: Scope, receive: Receive, body: bytearray) -> bool:
        seconds = self.settings.read_timeout
        try:
            return await asyncio.wait_for(self._read(scope, receive, body), seconds)
        except TimeoutError:
            raise Problem(408, "too_slow", f"the body took longer than {seconds:g} s") from None

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> bool:
        """Fill `body`; return False if the client disconnected."""
        limit = self.settings.max_body_bytes
        length = Headers(scope=scope).get("content-length", "")
        if length.isdecimal() and int(length) > limit:
            raise _too_large(limit)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            part = message.get("body", b"")
            if len(body) + len(part) > limit:
                raise _too_large(limit)
            if len(part) > self._free_bytes:
                raise Problem(429, "overloaded", "too many large bodies at once", retry_after=1)
            self._free_bytes -= len(part)
            body += part
            if not message.get("more_body", False):
                return True

    async def _refuse(
        self, problem: Problem, scope: Scope, receive: Receive, send: Send, *, is_arriving: bool = False
    ) -> None:
        """Answer with a problem and close the connection.

        :param is_arriving: the body is on its way although the client sent `Expect: 100-continue`.
        """
        # A connection closed before the body arrived is reset, and the client never reads why. But a client that
        # expects 100-continue is answered first, since receiving would invite the body that is being refused.
        if is_arriving or not _expects_continue(Headers(scope=scope)):
            with suppress(TimeoutError):
                await asyncio.wait_for(_discard(receive), _REFUSED_SECONDS)
        response = error_response(self.writers, scope, problem)
        response.headers["connection"] = "close"
        await response(scope, _disconnected, send)


async def _discard(receive: Receive) -> None:
    remaining = _REFUSED_BYTES
    while remaining > 0:
        message = await receive()
        if not message.get("more_body", False):
            return
        remaining -= len(message.get("body", b""))


def _expects_continue(headers: Headers) -> bool:
    return "100-continue" in headers.get("expect", "").lower()


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _has_ambiguous_length(headers: Headers) -> bool:
    """Return whether a proxy in front could read another length than we do, and so another next request."""
    return "transfer-encoding" in headers and "content-length" in headers


def _too_large(limit: int) -> Problem:
    return Problem(413, "too_large", f"the body is larger than max_body_bytes = {limit}")


def _replay(body: bytes, receive: Receive) -> Callable[[], Any]:
    is_replayed = False

    async def replay() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _disconnected() -> Message:
    return {"type": "http.disconnect"}
