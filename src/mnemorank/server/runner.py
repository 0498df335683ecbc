"""Run the app under uvicorn: patient with work, impatient with idlers, gone with exit code 0 when told to."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import h11
import uvicorn
from fastapi import FastAPI
from fastapi.responses import JSONResponse
from uvicorn.protocols.http.h11_impl import H11Protocol

from mnemorank.errors import InputError
from mnemorank.server.errors import Problem, write_native
from mnemorank.server.settings import Settings

logger = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 30
SEND_BUFFER = 256 * 1024
LAST_SECONDS = 10


class GracefulServer(uvicorn.Server):
    """uvicorn's server, but a shutdown by SIGTERM or SIGINT is a success: no signal is raised again after it.

    A shutdown that has not come to its end LAST_SECONDS after its limit is cut short, with exit code 1.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            limit = (self.config.timeout_graceful_shutdown or 0) + LAST_SECONDS
            cut_short = threading.Timer(limit, os._exit, (1,))
            cut_short.daemon = True
            cut_short.start()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(app: FastAPI, settings: Settings, sockets: list[socket.socket]) -> bool:
    """Serve until told to stop; False if the server could not start."""
    server = GracefulServer(uvicorn_config(app, settings))
    server.run(sockets)
    return server.started


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that a taken port is a plain error and port 0 is known before the server starts."""
    listener: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    listener.set_inheritable(True)
    return listener


def uvicorn_config(app: FastAPI, settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_impatient_protocol(settings),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout),
    )


def _impatient_protocol(settings: Settings) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with limits on the time that a request's headers may take (slow loris), and that a
    client may take nothing of its answer.

    The body's time is the app's to limit. Connections beyond `max_connections` are refused, as uvicorn would, but in
    our shape, and those that were there before go on.
    """
    most = settings.max_connections
    full = Problem(503, "overloaded", f"max_connections = {most} connections are open")
    headers = {"retry-after": "1", "connection": "close"}
    refusal: Any = JSONResponse(write_native(full, None)[1], full.status_code, headers)

    class ImpatientProtocol(H11Protocol):
        _waiting: asyncio.TimerHandle | None = None
        _draining: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > most:
                self.app = refusal
            # Writing is paused as soon as the kernel does not take all at once, and resumed when nothing is left.
            transport.set_write_buffer_limits(0)
            # What the kernel holds is bounded too: it takes more only after a good part of it was read.
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
            self._wait_for_request()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            has_request = self.conn.their_state is not h11.IDLE
            if has_request:
                self._stop_waiting()
            elif self._waiting is None:
                self._wait_for_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            self._stop_draining()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_draining()

        def resume_writing(self) -> None:
            self._stop_draining()
            super().resume_writing()

        def _watch_draining(self) -> None:
            left = self.transport.get_write_buffer_size()
            self._draining = self.loop.call_later(settings.write_timeout, self._check_draining, left)

        def _check_draining(self, before: int) -> None:
            if self.transport.get_write_buffer_size() < before:
                self._watch_draining()
            else:
                logger.info("a client that takes nothing of its answer is cut off")
                self.transport.abort()

        def _stop_draining(self) -> None:
            if self._draining is not None:
                self._draining.cancel()
                self._draining = None

        def _wait_for_request(self) -> None:
            self._waiting = self.loop.call_later(settings.read_timeout, self._give_up)

        def _stop_waiting(self) -> None:
            if self._waiting is not None:
                self._waiting.cancel()
                self._waiting = None

        def _give_up(self) -> None:
            self._waiting = None
            self._refuse(b"408 Request Timeout", Problem(408, "too_slow", "the request took too long to arrive"))

        def send_400_response(self, msg: str) -> None:
            self._refuse(b"400 Bad Request", Problem(400, "malformed", "this is not HTTP as RFC 9112 has it"))

        def _refuse(self, status: bytes, problem: Problem) -> None:
            """Answer what is not yet a request, and so speaks no dialect, in the native shape; then hang up."""
            if not self.transport.is_closing() and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                content = json.dumps(write_native(problem, None)[1]).encode()
                head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\nconnection: close\r\n" % status
                self.transport.write(head + b"content-length: %d\r\n\r\n" % len(content) + content)
            self.transport.close()

    protocol: Any = ImpatientProtocol
    return protocol  # type: ignore[no-any-return]
