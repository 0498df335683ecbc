"""Ticket: one request on its way through the server; it carries cancellation and counts what the request cost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from mnemorank._internal.deadline import Deadline
from mnemorank.server.errors import RequestCancelledError


class Ticket:
    """:param deadline: after which nobody wants the answer.

    `is_admitted` once a queue took some of its pairs, so that the rest are not refused; held under `admission`.
    """

    def __init__(self, deadline: Deadline | None = None) -> None:
        self.deadline = deadline
        self.started = time.monotonic()
        self.pairs = 0
        self.tokens = 0
        self.queue_seconds = 0.0
        self.inference_seconds = 0.0
        self.is_admitted = False
        self.admission = threading.Lock()
        self._lock = threading.Lock()
        self._cancelled = False
        self._stops: list[Callable[[], None]] = []

    @property
    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        """Stop the request's work, now and in future."""
        with self._lock:
            self._cancelled = True
            stops = list(self._stops)
        for stop in stops:
            stop()

    @contextmanager
    def cancellable(self, stop: Callable[[], None]) -> Iterator[None]:
        """Within the block, `cancel` calls `stop`."""
        with self._lock:
            self._stops.append(stop)
        try:
            self.check()
            yield
            self.check()
        finally:
            with self._lock:
                self._stops.remove(stop)

    def check(self) -> None:
        if self._cancelled:
            raise RequestCancelledError("the request was cancelled")

    def count(self, pairs: int, tokens: int) -> None:
        with self._lock:
            self.pairs += pairs
            self.tokens += tokens

    def spend(self, queue_seconds: float, inference_seconds: float) -> None:
        with self._lock:
            self.queue_seconds += queue_seconds
            self.inference_seconds += inference_seconds


current_ticket: ContextVar[Ticket | None] = ContextVar("mnemorank_ticket", default=None)
