"""From start to end: load the model, follow SIGHUP and the registry, and put everything away."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fastapi import FastAPI

from mnemorank.server.api.admin import Catalogue
from mnemorank.server.engine import Engine
from mnemorank.server.errors import SwapError
from mnemorank.server.model_slot import ModelSlot

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    slot: ModelSlot = app.state.slot
    catalogue: Catalogue = app.state.catalogue
    engine: Engine = app.state.engine
    if slot.current is None:
        await asyncio.to_thread(slot.load_first, catalogue.default())
    tasks: set[asyncio.Task[None]] = set()
    if app.state.settings.registry is not None:
        tasks.add(asyncio.create_task(follow(catalogue.registered, slot)))
    if app.state.learning is not None:
        await asyncio.to_thread(app.state.learning.start)
    forget_signal = _reload_on_hangup(slot, catalogue, tasks)
    try:
        yield
    finally:
        forget_signal()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        engine.close()
        await asyncio.to_thread(slot.close)
        if app.state.learning is not None:
            await asyncio.to_thread(app.state.learning.close)
        close_log = getattr(app.state.event_log, "close", None)
        if close_log is not None:
            await asyncio.to_thread(close_log)


async def follow(current: Callable[[], Path | None], slot: ModelSlot, seconds: float = POLL_SECONDS) -> None:
    """Swap to the registry's current version whenever it changes. A version that was refused is not tried again."""
    served = slot.current
    seen = Path(served.source) if served else None
    while True:
        try:
            now = await asyncio.to_thread(current)
        except Exception:
            logger.exception("the registry cannot be read")
            now = seen
        if now is not None and now != seen:
            seen = now
            with suppress(SwapError):  # the slot has logged and counted it
                await asyncio.to_thread(slot.swap, now)
        await asyncio.sleep(seconds)


def _reload_on_hangup(slot: ModelSlot, catalogue: Catalogue, tasks: set[asyncio.Task[None]]) -> Callable[[], None]:
    """On SIGHUP, load the configured model (or the registry's current version) again."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGHUP"):
        return lambda: None
    loop = asyncio.get_running_loop()

    async def reload() -> None:
        try:
            await asyncio.to_thread(lambda: slot.swap(catalogue.default()))
        except SwapError:
            pass  # the slot has logged and counted it
        except Exception:
            logger.exception("the registry cannot be read; the model stays")

    def start() -> None:
        task = loop.create_task(reload())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGHUP, start)
    return lambda: _remove_handler(loop)


def _remove_handler(loop: asyncio.AbstractEventLoop) -> None:
    loop.remove_signal_handler(signal.SIGHUP)
