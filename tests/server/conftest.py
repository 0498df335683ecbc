"""Real servers on free loopback ports, with the tiny model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from mnemorank.server import ServerSettings, create_app
from mnemorank.server.runner import GracefulServer, listen, uvicorn_config


class Running:
    """A server in a thread. `app` is open to the test; `url` is where clients go."""

    def __init__(self, settings: ServerSettings, **arguments: Any) -> None:
        self.app = create_app(settings, **arguments)
        sockets = [listen(settings.host, 0)]
        self.port = sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.server = GracefulServer(uvicorn_config(self.app, settings))
        self._thread = threading.Thread(target=self.server.run, args=(sockets,), daemon=True)
        self._thread.start()
        end = time.monotonic() + 20
        while not self.server.started:
            assert time.monotonic() < end, "the server did not start"
            assert self._thread.is_alive(), "the server stopped while starting"
            time.sleep(0.01)
        self.client = httpx.Client(base_url=self.url, timeout=30)

    def stop(self) -> None:
        self.client.close()
        self.server.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def tiny_settings(tiny_onnx: Path) -> Callable[..., ServerSettings]:
    return lambda **changes: ServerSettings(**{"model": str(tiny_onnx), "shutdown_timeout": 5.0, **changes})


@pytest.fixture(scope="module")
def start(tiny_settings) -> Iterator[Callable[..., Running]]:
    """Start servers that end with the module: `start(max_documents=3)`."""
    running: list[Running] = []

    def start_one(*, event_log: Any = None, tracer_provider: Any = None, **changes: Any) -> Running:
        running.append(Running(tiny_settings(**changes), event_log=event_log, tracer_provider=tracer_provider))
        return running[-1]

    yield start_one
    for one in running:
        one.stop()


@pytest.fixture(scope="module")
def server(start) -> Running:
    return start()


@pytest.fixture
def client(server) -> httpx.Client:
    return server.client
