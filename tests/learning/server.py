"""A real server in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from mnemorank.server import ServerSettings, create_app
from mnemorank.server.runner import GracefulServer, listen, uvicorn_config


@contextmanager
def serving(**fields) -> Iterator[httpx.Client]:
    """Run a server for the duration of the block; yield a client.

    :param fields: settings of the server.
    """
    settings = ServerSettings(**{"shutdown_timeout": 5.0, "threads": 1, **fields})
    app = create_app(settings)
    sockets = [listen("127.0.0.1", 0)]
    server = GracefulServer(uvicorn_config(app, settings))
    thread = threading.Thread(target=server.run, args=(sockets,), daemon=True)
    thread.start()
    end = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < end, "the server did not start"
        assert thread.is_alive(), "the server stopped while starting"
        time.sleep(0.01)
    with httpx.Client(base_url=f"http://127.0.0.1:{sockets[0].getsockname()[1]}", timeout=60) as client:
        client.app = app
        yield client
    server.should_exit = True
    thread.join(30)
    assert not thread.is_alive(), "the server did not stop"


def write_settings(folder: Path, text: str = "") -> Path:
    """Write a `learning.toml` that stores texts by default; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "learning.toml").write_text(text or "[privacy]\ntexts = true\n")
    return folder


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.05)
