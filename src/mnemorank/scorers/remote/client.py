"""A small JSON-over-HTTP client on the standard library: kept connections, and one time limit for a whole exchange."""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import ssl
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import SplitResult

from mnemorank._internal.deadline import Deadline

_CHUNK = 1 << 16
_LARGEST_ANSWER = 1 << 26


class Unreachable(Exception):  # noqa: N818 - a condition to retry on, never shown by this name
    """No whole answer came: refused, cut or too slow. The message says which."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    content: bytes = field(repr=False)

    def json(self) -> Any:
        return json.loads(self.content)


class HttpClient:
    """Posts to one URL. Safe to use from many threads; each exchange has a connection of its own."""

    def __init__(self, url: SplitResult) -> None:
        self._url = url
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        weakref.finalize(self, _close_all, self._idle)  # for callers that never close

    def post(self, body: Mapping[str, Any], headers: Mapping[str, str], deadline: Deadline) -> Answer:
        """:param deadline: for the whole exchange."""
        content = json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json", **headers}
        kept = self._take()
        if kept is not None:
            try:
                return self._exchange(kept, content, headers, deadline)
            except _Stale:
                pass  # the server closed it while it was idle; that says nothing about the server
        return self._exchange(self._connection(), content, headers, deadline)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            _close_all(self._idle)

    def _exchange(
        self, connection: http.client.HTTPConnection, content: bytes, headers: Mapping[str, str], deadline: Deadline
    ) -> Answer:
        was_used = connection.sock is not None
        try:
            _limit(connection, deadline)
            connection.request("POST", self._target, content, dict(headers))
            connection.response_class = partial(_Response, deadline=deadline)  # type: ignore[assignment]
            response = connection.getresponse()
            answer = Answer(response.status, dict(response.headers.items()), _read(response))
        except TimeoutError:
            connection.close()
            raise Unreachable("no answer in time") from None
        except (http.client.HTTPException, OSError) as error:
            connection.close()
            if was_used and isinstance(error, (http.client.RemoteDisconnected, ConnectionError)):
                raise _Stale from None
            raise Unreachable(_reason(error)) from None
        if response.will_close:
            connection.close()
        else:
            self._keep(connection)
        return answer

    def _connection(self) -> http.client.HTTPConnection:
        host = self._url.hostname or ""
        if self._tls is not None:
            return http.client.HTTPSConnection(host, self._url.port, context=self._tls)
        return http.client.HTTPConnection(host, self._url.port)

    def _take(self) -> http.client.HTTPConnection | None:
        with self._lock:
            if self._process != os.getpid():
                # A forked child: its parent goes on with these, and two must not talk on one connection.
                self._process = os.getpid()
                _close_all(self._idle)
            return self._idle.pop() if self._idle else None

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()


def _close_all(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


class _Stale(Exception):  # noqa: N818
    """A kept connection turned out to be closed."""


class _Response(http.client.HTTPResponse):
    """A response that is read until the deadline, head and body, however slowly its bytes come."""

    def __init__(self, sock: socket.socket, *arguments: Any, deadline: Deadline, **options: Any) -> None:
        super().__init__(sock, *arguments, **options)
        self.fp = io.BufferedReader(_Punctual(sock, self.fp.detach(), deadline))


class _Punctual(io.RawIOBase):
    """What comes from a socket, each piece of it in the time that is left."""

    def __init__(self, sock: socket.socket, source: io.RawIOBase, deadline: Deadline) -> None:
        self._sock, self._source, self._deadline = sock, source, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self._sock.settimeout(_left(self._deadline))
        return self._source.readinto(buffer)

    def close(self) -> None:
        self._source.close()
        super().close()


def _limit(connection: http.client.HTTPConnection, deadline: Deadline) -> None:
    connection.timeout = _left(deadline)
    if connection.sock is not None:
        connection.sock.settimeout(connection.timeout)


def _left(deadline: Deadline) -> float:
    if deadline.expired:
        raise TimeoutError
    return deadline.remaining()


def _read(response: http.client.HTTPResponse) -> bytes:
    """The body, piece by piece, so that it is given up where it grows too large."""
    parts: list[bytes] = []
    size = 0
    while part := response.read1(_CHUNK):
        parts.append(part)
        size += len(part)
        if size > _LARGEST_ANSWER:
            raise http.client.HTTPException("the answer is larger than 64 MB")
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)
    response.close()  # read to the end piece by piece, it does not know that the connection is free again
    return b"".join(parts)


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.IncompleteRead):
        return "the connection was cut in the middle of the answer"
    if isinstance(error, (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError)):
        return "the connection was cut before an answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error) or type(error).__name__
