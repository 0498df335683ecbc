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
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType

import uvicorn
from fastapi import FastAPI

from mnemorank.errors import InputError
from mnemorank.server.settings import ServerSettings

_KEEP_ALIVE_SECONDS = 30
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


def listen(host: str, port: int) -> socket.socket:
    """Bind a socket before the server starts, so that a taken port is a plain error and the free port is known."""
    listener: socket.socket | None = None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        field = "host" if isinstance(error, socket.gaierror) else "port"
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror or error}", field=field) from None
    listener.set_inheritable(True)
    return listener
