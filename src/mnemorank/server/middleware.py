"""What surrounds every request: id, log line and metrics; host and origin; body size and patience."""

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

from mnemorank.server.auth import KeyRing, identify
from mnemorank.server.errors import ErrorWriter, Problem, as_problem, respond
from mnemorank.server.observability import Metrics, Tracing, log_failure
from mnemorank.server.settings import Settings

logger = logging.getLogger("mnemorank.server.requests")

BODIES_AT_ONCE = 16
# So many bytes of a refused body are awaited, for so many seconds.
_SMALL_BODY, _PATIENCE = 64 * 1024, 0.3
_READING = ("GET", "HEAD", "OPTIONS")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


class RequestContext:
    """Gives each request an id, a span, a line in the log and its place in the metrics."""

    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: Tracing, writers: Mapping[str, ErrorWriter]) -> None:
        self.app, self.metrics, self.tracing, self.writers = app, metrics, tracing, writers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        notes: dict[str, Any] = {}
        scope.setdefault("state", {}).update(request_id=request_id, notes=notes)
        started = time.monotonic()
        status = 500
        has_begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        self.metrics.under_way.inc()
        try:
            with self.tracing.request(scope, request_id) as span:
                try:
                    await self.app(scope, receive, send_with_id)
                except Exception as error:
                    log_failure(logger, "request failed", error, request_id=request_id)
                    if not has_begun:
                        await respond(self.writers, scope, as_problem(error))(scope, receive, send_with_id)
                span.finish(status, notes)
        finally:
            seconds = time.monotonic() - started
            route = route_of(scope)
            self.metrics.under_way.dec()
            self.metrics.observe_request(route, status, seconds)
            line = {
                "request_id": request_id,
                "method": scope["method"],
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 1),
                **notes,
            }
            logger.log(logging.DEBUG if route in _QUIET else logging.INFO, "request", extra={"fields": line})


_QUIET = ("/health", "/ready", "/metrics")


def route_of(scope: Scope) -> str:
    """The route's path, or `unknown`: a label must not be the caller's to choose."""
    return str(getattr(scope.get("route"), "path", "unknown"))


class HostGuard:
    """On loopback without keys, answers only to loopback's names, so that no web page can reach in by its own name."""

    def __init__(self, app: ASGIApp, settings: Settings, writers: Mapping[str, ErrorWriter]) -> None:
        self.app, self.writers = app, writers
        named = (settings.host, *settings.allowed_hosts)
        self.allowed = {"localhost", "127.0.0.1", "[::1]", *(name.lower() for name in named)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = Headers(scope=scope).get("host", "")
            name = re.sub(r":\d*$", "", host).lower()
            if name not in self.allowed:
                problem = Problem(421, "wrong_host", "this server does not answer to that host name; see allowed_hosts")
                await respond(self.writers, scope, problem)(scope, receive, send)
                return
        await self.app(scope, receive, send)


class OriginGuard:
    """Without keys, lets no page of another origin change anything: its requests name their origin, or are a form's.

    A program sends no origin, and need not state the type of a body it does not send.
    """

    def __init__(self, app: ASGIApp, settings: Settings, writers: Mapping[str, ErrorWriter]) -> None:
        self.app, self.writers = app, writers
        self.allowed = {origin.lower() for origin in settings.cors_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = None
        if scope["type"] == "http" and scope["method"] not in _READING:
            problem = self._problem(Headers(scope=scope))
        if problem is None:
            await self.app(scope, receive, send)
        else:
            await respond(self.writers, scope, problem)(scope, receive, send)

    def _problem(self, headers: Headers) -> Problem | None:
        origin = headers.get("origin", "").lower()
        is_own = "://" in origin and origin.partition("://")[2] == headers.get("host", "").lower()
        if origin and not is_own and not self.allowed & {origin, "*"}:
            message = "pages of that origin may not do this; name it in cors_origins if they should"
            return Problem(403, "foreign_origin", message)
        kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json" and not re.fullmatch(r"application/\S+\+json", kind):
            return Problem(403, "not_json", "requests must be sent as application/json")
        return None


class BodyGuard:
    """Reads the whole body before the app sees the request: of known callers only, not more and not longer than
    allowed, and not more of all requests together than BODIES_AT_ONCE of the largest.
    """

    def __init__(
        self, app: ASGIApp, settings: Settings, keys: KeyRing | None, writers: Mapping[str, ErrorWriter]
    ) -> None:
        self.app, self.settings, self.keys, self.writers = app, settings, keys, writers
        self._room = BODIES_AT_ONCE * settings.max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if scope["method"] in _READING:
            # A body that nobody reads could keep its connection open for ever, byte by byte.
            if _has_body(Headers(scope=scope)):
                problem = Problem(400, "malformed", f"a {scope['method']} request has no body")
                await self._refuse(problem, scope, receive, send)
            else:
                await self.app(scope, receive, send)
            return
        body = bytearray()
        try:
            identify(Headers(scope=scope), self.keys)
            is_whole = await asyncio.wait_for(self._read(scope, receive, body), self.settings.read_timeout)
            if is_whole:
                await self.app(scope, _replay(bytes(body), receive), send)
        except TimeoutError:
            problem = Problem(408, "too_slow", f"the body took longer than {self.settings.read_timeout:g} s")
            await self._refuse(problem, scope, receive, send, is_invited=bool(body))
        except Problem as problem:
            await self._refuse(problem, scope, receive, send, is_invited=bool(body))
        finally:
            self._room += len(body)

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> bool:
        """Fill `body`; False if the client left."""
        limit = self.settings.max_body_bytes
        stated = Headers(scope=scope).get("content-length", "")
        if stated.isdecimal() and int(stated) > limit:
            raise _too_large(limit)
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return False
            part = message.get("body", b"")
            if len(body) + len(part) > limit:
                raise _too_large(limit)
            if len(part) > self._room:
                raise Problem(429, "overloaded", "too many large bodies are under way", retry_after=1)
            self._room -= len(part)
            body += part
            if not message.get("more_body", False):
                return True

    async def _refuse(
        self, problem: Problem, scope: Scope, receive: Receive, send: Send, *, is_invited: bool = False
    ) -> None:
        """:param is_invited: the body is on its way, though the client asked whether to send it."""
        # What is on its way is let in: a connection closed before that is reset, and the client never reads why.
        # A client that asks first is answered first: to receive would invite the very body that is refused.
        if is_invited or not _asks_first(Headers(scope=scope)):
            with suppress(TimeoutError):
                await asyncio.wait_for(_skip(receive), _PATIENCE)
        response = respond(self.writers, scope, problem)
        response.headers["connection"] = "close"
        await response(scope, _nothing, send)


async def _skip(receive: Receive) -> None:
    """Read what comes and keep nothing, up to a small body."""
    left = _SMALL_BODY
    while left > 0:
        message = await receive()
        if not message.get("more_body", False):
            return
        left -= len(message.get("body", b""))


def _asks_first(headers: Headers) -> bool:
    return "100-continue" in headers.get("expect", "").lower()


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _too_large(limit: int) -> Problem:
    return Problem(413, "too_large", f"the body is larger than max_body_bytes = {limit}")


def _replay(body: bytes, receive: Receive) -> Callable[[], Any]:
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


async def _nothing() -> Message:
    return {"type": "http.disconnect"}
