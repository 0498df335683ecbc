"""A small JSON-over-HTTP client on the standard library, with keep-alive and one deadline for a whole exchange."""

from __future__ import annotations

import http.client
import io
import json
import math
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.parse import SplitResult

from mnemorank._internal.deadline import Deadline

_CHUNK_BYTES = 1 << 16
_MAX_RESPONSE_BYTES = 1 << 26


class ConnectionFailedError(Exception):
    """No complete response arrived: the connection was refused, cut or too slow. The message says which."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete response."""

    status: int
    headers: Mapping[str, str]
    content: bytes = field(repr=False)

    def json(self) -> Any:
        return json.loads(self.content)

    def retry_after(self) -> float:
        """Return the seconds of the `Retry-After` header, 0 if it is missing, in the past or invalid."""
        value = next((text for name, text in self.headers.items() if name.lower() == "retry-after"), "").strip()
        try:
            seconds = float(value)
        except ValueError:
            try:
                seconds = (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds()
            except (ValueError, TypeError):
                return 0.0
        return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


class HttpClient:
    """Posts JSON to one URL. Safe to use from many threads; each exchange has its own connection."""

    def __init__(self, url: SplitResult) -> None:
        self._url = url
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._closed = False
        self._process_id = os.getpid()
        weakref.finalize(self, _close_all, self._idle)  # for callers that never close

    def post(self, body: Mapping[str, Any], headers: Mapping[str, str], deadline: Deadline) -> HttpResponse:
        """Send a request and return the response; raise ConnectionFailedError if none is complete by the deadline."""
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json", **headers}
        idle = self._take_idle()
        if idle is not None:
            try:
                return self._exchange(idle, content, headers, deadline)
            except _StaleConnectionError:
                pass  # the server closed an idle connection, which is not a failure
        return self._exchange(self._new_connection(), content, headers, deadline)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            _close_all(self._idle)

    def _exchange(
        self, connection: http.client.HTTPConnection, content: bytes, headers: Mapping[str, str], deadline: Deadline
    ) -> HttpResponse:
        is_reused = connection.sock is not None
        try:
            _set_timeout(connection, deadline)
            connection.request("POST", self._target, content, dict(headers))
            connection.response_class = partial(_DeadlineResponse, deadline=deadline)  # type: ignore[assignment]
            response = connection.getresponse()
            complete = HttpResponse(response.status, dict(response.headers.items()), _read_body(response))
        except TimeoutError:
            connection.close()
            raise ConnectionFailedError("timed out") from None
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            if is_reused and isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                raise _StaleConnectionError from None
            raise ConnectionFailedError(_reason(error)) from None
        if response.will_close:
            connection.close()
        else:
            self._keep(connection)
        return complete

    def _new_connection(self) -> http.client.HTTPConnection:
        host = self._url.hostname or ""
        if self._tls is not None:
            return http.client.HTTPSConnection(host, self._url.port, context=self._tls)
        return http.client.HTTPConnection(host, self._url.port)

    def _take_idle(self) -> http.client.HTTPConnection | None:
        with self._lock:
            if self._process_id != os.getpid():
                # A forked child must not share its parent's connections.
                self._process_id = os.getpid()
                _close_all(self._idle)
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()


class _StaleConnectionError(Exception):
    """The server closed an idle connection."""


class _DeadlineResponse(http.client.HTTPResponse):
    """A response whose head and body are read until the deadline, however slowly the bytes arrive."""

    def __init__(self, sock: socket.socket, *arguments: Any, deadline: Deadline, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_DeadlineReader(sock, self.fp.detach(), deadline))


class _DeadlineReader(io.RawIOBase):
    """A socket stream that sets the timeout of each read to the time left."""

    def __init__(self, sock: socket.socket, stream: io.RawIOBase, deadline: Deadline) -> None:
        self._sock, self._stream, self._deadline = sock, stream, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_time_left(self._deadline))
        return self._stream.readinto(buffer)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _set_timeout(connection: http.client.HTTPConnection, deadline: Deadline) -> None:
    connection.timeout = _time_left(deadline)
    if connection.sock is not None:
        connection.sock.settimeout(connection.timeout)


def _time_left(deadline: Deadline) -> float:
    if deadline.expired:
        raise TimeoutError
    return deadline.remaining()


def _read_body(response: http.client.HTTPResponse) -> bytes:
    """Read the body in chunks, up to a size limit."""
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_CHUNK_BYTES):
        parts.append(part)
        size += len(part)
        if size > _MAX_RESPONSE_BYTES:
            raise http.client.HTTPException(f"the response is larger than {_MAX_RESPONSE_BYTES >> 20} MB")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    response.close()  # `read1` does not mark the connection as free at the end
    return b"".join(parts)


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "connection closed in the middle of the response"
    if isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
        return "connection closed before a response"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
