"""A circuit breaker: leave a failing model alone for a while, then try it once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Literal

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Closed, calls pass. After `failures` in a row it opens and none pass; after `cooldown` seconds one call may try,
    and its outcome closes the breaker or opens it anew.

    Whoever was let through must report back: `succeeded`, `failed`, or `withdrew` if the call told nothing.

    :param clock: seconds that never go back.
    """

    def __init__(self, failures: int = 3, cooldown: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._cooldown, self._clock = failures, cooldown, clock
        self._failures = 0
        self._opened_at: float | None = None
        self._is_trying = False
        self._lock = threading.Lock()

    @property
    def state(self) -> State:
        with self._lock:
            return self._state()

    def allows(self) -> bool:
        """Whether a call may pass now."""
        with self._lock:
            state = self._state()
            if state == "half-open" and not self._is_trying:
                self._is_trying = True
                return True
            return state == "closed"

    def succeeded(self) -> None:
        with self._lock:
            self._failures, self._opened_at, self._is_trying = 0, None, False

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._is_trying = False
            if self._failures >= self._limit:
                self._opened_at = self._clock()

    def withdrew(self) -> None:
        with self._lock:
            self._is_trying = False

    def _state(self) -> State:
        if self._opened_at is None:
            return "closed"
        return "half-open" if self._clock() - self._opened_at >= self._cooldown else "open"
