"""Engine: runs a request's work in a thread, on one model, as long as somebody waits for it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request

from mnemorank._internal.deadline import Deadline
from mnemorank.server.errors import OverloadedError, Problem, RequestCancelledError
from mnemorank.server.model_slot import ModelSlot, Served
from mnemorank.server.observability import Tracing
from mnemorank.server.settings import Settings
from mnemorank.server.ticket import Ticket, current_ticket

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What the work gave, the model it ran on, and what it cost."""

    value: T
    served: Served
    ticket: Ticket


class Engine:
    def __init__(self, settings: Settings, slot: ModelSlot, tracing: Tracing) -> None:
        self.settings = settings
        self.slot = slot
        self._tracing = tracing
        self._threads = ThreadPoolExecutor(settings.max_requests, thread_name_prefix="mnemorank-request")
        self._under_way = 0

    async def run(self, request: Request, work: Callable[[Served], T], deadline: Deadline | None = None) -> Answer[T]:
        """Run the work in a thread with the current model leased; a client that leaves cancels it.

        :param deadline: after which scoring is an error; None for work that keeps its own.
        """
        most = self.settings.max_requests
        if self._under_way >= most:
            raise OverloadedError(f"max_requests = {most} requests are under way", retry_after=1)
        ticket = Ticket(deadline)
        served = self.slot.take()
        self._under_way += 1

        def in_thread() -> T:
            current_ticket.set(ticket)
            with self._tracing.step("rank"):
                return work(served)

        def finished(done: asyncio.Future[T]) -> None:
            self._under_way -= 1
            self.slot.give_back(served)
            if not done.cancelled():
                done.exception()  # read, so that asyncio does not report the error of work that nobody awaits

        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, copy_context().run, in_thread)
        future.add_done_callback(finished)
        gone = loop.create_task(_until_gone(request))
        waited: set[asyncio.Future[Any]] = {future, gone}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise RequestCancelledError("the client went away")
            return Answer(future.result(), served, ticket)
        finally:
            gone.cancel()
            if not future.done():
                ticket.cancel()
                if deadline is not None:
                    deadline.cancel()
            self._note(request, ticket, served)

    def deadline(self, request: Request, wanted_ms: float | None = None) -> Deadline:
        """When the request must be answered: the sooner of what it asks for and `request_timeout`."""
        seconds = self.settings.request_timeout
        stated = request.headers.get("x-deadline-ms")
        if stated is not None:
            seconds = min(seconds, _milliseconds(stated) / 1000)
        if wanted_ms is not None:
            seconds = min(seconds, wanted_ms / 1000)
        return Deadline(seconds)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @staticmethod
    def _note(request: Request, ticket: Ticket, served: Served) -> None:
        notes: dict[str, Any] = request.state.notes
        notes.update(
            model=served.label,
            pairs=ticket.pairs,
            tokens=ticket.tokens,
            queue_ms=round(ticket.queue_seconds * 1000, 1),
            inference_ms=round(ticket.inference_seconds * 1000, 1),
        )
        caller = getattr(request.state, "caller", None)
        if caller is not None:
            notes["caller"] = caller.name


def _milliseconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise Problem(422, "invalid", "x-deadline-ms: expected a number above 0", field="x-deadline-ms")
    return number


async def _until_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
