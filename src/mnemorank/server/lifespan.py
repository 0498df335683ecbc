"""Start and shutdown of the application, and model reloads in between (SIGHUP, registry)."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fastapi import FastAPI

from mnemorank import MemoryIndex
from mnemorank.server.api.admin import ModelCatalog
from mnemorank.server.engine import Engine
from mnemorank.server.errors import SwapError
from mnemorank.server.model_slot import ModelSlot

logger = logging.getLogger(__name__)

_POLL_SECONDS = 1.0


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    slot: ModelSlot = app.state.slot
    catalog: ModelCatalog = app.state.catalog
    engine: Engine = app.state.engine
    if slot.current is None:
        await asyncio.to_thread(slot.load_first, catalog.default())
    await asyncio.to_thread(open_index, app)
    tasks: set[asyncio.Task[None]] = set()
    if app.state.settings.has_console:
        tasks.add(asyncio.create_task(app.state.history.record()))
    if app.state.settings.registry is not None:
        tasks.add(asyncio.create_task(follow_registry(catalog.registered, slot)))
    if app.state.learning is not None:
        await asyncio.to_thread(app.state.learning.start)
    remove_handler = _reload_on_sighup(slot, catalog, tasks)
    try:
        yield
    finally:
        remove_handler()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        engine.close()
        state = app.state
        for pool in (state.parser_pool, state.store_pool, state.learning_pool, state.swap_pool, state.index_pool):
            pool.close()
        await asyncio.to_thread(slot.close)
        await asyncio.to_thread(state.comparison.close)
        if state.index is not None:
            await asyncio.to_thread(state.index.close)
        if app.state.learning is not None:
            await asyncio.to_thread(app.state.learning.close)
        close_log = getattr(app.state.event_log, "close", None)
        if close_log is not None:
            await asyncio.to_thread(close_log)


def open_index(app: FastAPI) -> None:
    """Open the index, if there is one. It keeps the model that it was opened with when another one is served."""
    settings = app.state.settings
    if settings.index is not None and app.state.index is None:
        app.state.index = MemoryIndex.open(settings.index, app.state.catalog.default(), threads=settings.threads)


async def follow_registry(
    current: Callable[[], Path | None], slot: ModelSlot, interval_seconds: float = _POLL_SECONDS
) -> None:
    """Serve the registry's current version whenever it changes. A version that was refused is not tried again."""
    served = slot.current
    last = Path(served.source) if served else None
    while True:
        try:
            version = await asyncio.to_thread(current)
        except Exception:
            logger.exception("could not read the registry")
            version = last
        if version is not None and version != last:
            last = version
            with suppress(SwapError):  # logged and counted by the slot
                await asyncio.to_thread(slot.swap, version)
        await asyncio.sleep(interval_seconds)


def _reload_on_sighup(slot: ModelSlot, catalog: ModelCatalog, tasks: set[asyncio.Task[None]]) -> Callable[[], None]:
    """On SIGHUP, reload the configured model or the registry's current version; return a function that undoes this."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        return lambda: None
    loop = asyncio.get_running_loop()

    async def reload() -> None:
        try:
            await asyncio.to_thread(lambda: slot.swap(catalog.default()))
        except SwapError:
            pass  # logged and counted by the slot
        except Exception:
            logger.exception("could not read the registry; the model stays")

    def start_reload() -> None:
        task = loop.create_task(reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def remove_handler() -> None:
        loop.remove_signal_handler(signal.SIGHUP)

    loop.add_signal_handler(signal.SIGHUP, start_reload)
    return remove_handler
