"""Run the application with uvicorn.

The server limits what an application can limit: bodies by size and time, requests by number and time, connections by
number. Clients that send headers slowly or do not read their responses are left to a reverse proxy, which every server
on a public address should have in front of it:

- Put nginx, Caddy or a load balancer in front, and bind mnemorank to loopback or a private network.
- Limit slow clients there: in nginx `client_header_timeout`, `client_body_timeout` and `send_timeout`, with request
  and response buffering on (the default).
- Allow bodies up to `max_body_bytes` (nginx: `client_max_body_size`) and responses as slow as `request_timeout`
  (nginx: `proxy_read_timeout`).
- `X-Forwarded-For` and `X-Forwarded-Proto` are trusted from loopback. Set `FORWARDED_ALLOW_IPS`, which uvicorn reads,
  if the proxy runs on another host.
- Without API keys a server on loopback accepts only loopback's names. Add the public name to `allowed_hosts`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from mnemorank.errors import InputError
from mnemorank.server.settings import ServerSettings

logger = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS = 30
_LOG_SECONDS = 10.0
# Files that are not connections: the model, databases, libraries, logs.
_OTHER_FILES = 512
_FORCED_EXIT_SECONDS = 10


class GracefulServer(uvicorn.Server):
    """A uvicorn server for which shutdown by SIGTERM or SIGINT is a success: the signal is not raised again.

    A shutdown that hangs is cut short with exit code 1.
    """

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if not self.should_exit:
            seconds = (self.config.timeout_graceful_shutdown or 0) + _FORCED_EXIT_SECONDS
            forced_exit = threading.Timer(seconds, os._exit, (1,))
            forced_exit.daemon = True
            forced_exit.start()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handlers = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def run(app: FastAPI, settings: ServerSettings, sockets: list[socket.socket]) -> bool:
    """Serve until a signal arrives; return False if the server could not start."""
    raise_file_limit(settings.max_connections)
    server = GracefulServer(uvicorn_config(app, settings))
    try:
        server.run(sockets)
    except SystemExit:  # how uvicorn reports an application that fails to start, which it has logged
        for listener in sockets:
            listener.close()
        return False
    return server.started


def uvicorn_config(app: FastAPI, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        limit_concurrency=settings.max_connections + 1,  # uvicorn refuses once this many are open
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=math.ceil(settings.shutdown_timeout),
    )


class Listener(socket.socket):
    """A listening socket that closes connections at once while the process has no file descriptor for them.

    Without this, asyncio would try to accept them again and again, at the cost of a core and of thousands of log lines.
    """

    _logged_at = -math.inf

    def __init__(self, family: int, kind: int) -> None:
        super().__init__(family, kind)
        # Given up for the moment that it takes to accept a connection and close it.
        self._spare = os.open(os.devnull, os.O_RDONLY)

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            try:
                return super().accept()
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE):
                    raise
                self._turn_away()

    def close(self) -> None:
        self._release_spare()
        super().close()

    def _turn_away(self) -> None:
        if time.monotonic() - self._logged_at > _LOG_SECONDS:
            self._logged_at = time.monotonic()
            logger.error("out of file descriptors: connections are closed; raise the limit, or lower max_connections")
        self._release_spare()
        try:
            connection, _ = super().accept()
            connection.close()
        finally:
            with contextlib.suppress(OSError):  # another thread took it; asyncio tries again in a second
                self._spare = os.open(os.devnull, os.O_RDONLY)

    def _release_spare(self) -> None:
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1


def raise_file_limit(max_connections: int) -> None:
    """Raise the limit of open files so that it suffices for all connections, as far as the system allows."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max_connections + _OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        logger.warning("the limit of %d open files is too low for max_connections = %d", allowed, max_connections)


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket before the server starts, so that a taken port is a plain error and the free port is known."""
    listener: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = Listener(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        field = "host" if isinstance(error, socket.gaierror) else "port"
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}", field=field) from None
    listener.set_inheritable(True)
    return listener
