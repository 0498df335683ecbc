"""A real server with a learning loop, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from mnemorank.server import ServerSettings, create_app
from mnemorank.server.runner import GracefulServer, listen, uvicorn_config


@contextmanager
def serving(**settings) -> Iterator[httpx.Client]:
    """A client of a server that runs for the length of the block."""
    stated = ServerSettings(**{"shutdown_timeout": 5.0, "threads": 1, **settings})
    app = create_app(stated)
    sockets = [listen("127.0.0.1", 0)]
    server = GracefulServer(uvicorn_config(app, stated))
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


def learning_folder(folder: Path, text: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "learning.toml").write_text(text or "[privacy]\ntexts = true\n")
    return folder
