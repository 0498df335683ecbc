"""Engine: runs the work of requests in threads, each on one model and under one deadline."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fastapi import Request, Response

from mnemorank._internal.deadline import Deadline
from mnemorank.errors import InputError
from mnemorank.server.errors import OverloadedError, RequestCanceledError
from mnemorank.server.model_slot import ModelSlot, ServedModel
from mnemorank.server.observability import Tracing
from mnemorank.server.pools import HelperPool
from mnemorank.server.requests import ActiveRequest, current_request
from mnemorank.server.settings import ServerSettings

T = TypeVar("T")
_HELPER_THREADS = 16


@dataclass(frozen=True, slots=True)
class Completed(Generic[T]):
    """The result of a request's work, the model it ran on, and what it cost."""

    value: T
    served: ServedModel
    usage: ActiveRequest


class Engine:
    def __init__(self, settings: ServerSettings, slot: ModelSlot, tracing: Tracing) -> None:
        self.settings = settings
        self.slot = slot
        self._tracing = tracing
        self.helpers = HelperPool("query", _HELPER_THREADS)
        self._threads = ThreadPoolExecutor(settings.max_requests, thread_name_prefix="mnemorank-request")
        self._active = 0

    async def run(
        self,
        request: Request,
        work: Callable[[ServedModel, Deadline], T],
        respond: Callable[[Completed[T]], Response],
        deadline: Deadline,
        *,
        needs_all: bool = False,
    ) -> Response:
        """Do the work in a thread on the current model. A client that disconnects cancels the deadline.

        :param work: also checks the request, as large requests would hold up the event loop.
        :param respond: writes the response, in the same thread.
        :param needs_all: partial results are useless to the client.
        """
        if self._active >= self.settings.max_requests:
            raise OverloadedError(f"max_requests = {self.settings.max_requests} requests are running", retry_after=1)
        active = ActiveRequest(deadline, needs_all=needs_all)
        served = self.slot.acquire()
        self._active += 1

        def run_in_thread() -> Response:
            current_request.set(active)
            with self._tracing.span("rank"):
                value = work(served, deadline)
            return respond(Completed(value, served, active))

        def finish(done: asyncio.Future[Response]) -> None:
            self._active -= 1
            self.slot.release(served)
            if not done.cancelled():
                done.exception()  # retrieved, so that asyncio does not report the error of abandoned work

        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._threads, copy_context().run, run_in_thread)
        future.add_done_callback(finish)
        disconnected = loop.create_task(_wait_for_disconnect(request))
        pending: set[asyncio.Future[Any]] = {future, disconnected}
        try:
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            if not future.done():
                raise RequestCanceledError("the client disconnected")
            return future.result()
        finally:
            disconnected.cancel()
            if not future.done():
                active.cancel()
            self._add_log_fields(request, active, served)

    def deadline(self, request: Request, deadline_ms: float | None = None, *, has_timeout: bool = True) -> Deadline:
        """Create the deadline of a request: `request_timeout` after it was received, or sooner if the client wants it.

        :param deadline_ms: from the body; the header `x-deadline-ms` works on every route.
        :param has_timeout: whether `request_timeout` applies.
        """
        limits = [self.settings.request_timeout if has_timeout else math.inf]
        waited = time.monotonic() - getattr(request.state, "received_at", time.monotonic())
        header = request.headers.get("x-deadline-ms")
        if header is not None:
            limits.append(_parse_milliseconds(header) / 1000)
        if deadline_ms is not None:
            limits.append(deadline_ms / 1000)
        return Deadline(min(limits) - waited)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.helpers.close()

    @staticmethod
    def _add_log_fields(request: Request, active: ActiveRequest, served: ServedModel) -> None:
        fields: dict[str, Any] = request.state.log_fields
        fields.update(
            model=served.label,
            pairs=active.pairs,
            tokens=active.tokens,
            queue_ms=round(active.queue_seconds * 1000, 1),
            inference_ms=round(active.inference_seconds * 1000, 1),
        )
        caller = getattr(request.state, "caller", None)
        if caller is not None:
            fields["caller"] = caller.name


def _parse_milliseconds(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise InputError(f"expected a number above 0, got {text!r:.60}", field="x-deadline-ms")
    return number


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
