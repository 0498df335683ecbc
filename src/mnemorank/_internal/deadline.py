"""The time limit of a request."""

from __future__ import annotations

import math
import threading
import time


class Deadline:
    """The time by which a request must be answered.

    Create it once, where the request comes in, and pass it down to everything that takes time. It is safe to share
    between threads.

    :param seconds: the time left; `math.inf` for a request that can only be canceled.
    """

    __slots__ = ("_expires_at",)

    def __init__(self, seconds: float) -> None:
        self._expires_at = time.monotonic() + seconds

    @classmethod
    def after_ms(cls, milliseconds: float) -> Deadline:
        """Return a deadline that expires in `milliseconds`."""
        return cls(milliseconds / 1000)

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._expires_at

    def remaining(self) -> float:
        """Return the seconds left, 0 when expired."""
        return max(self._expires_at - time.monotonic(), 0.0)

    def timeout(self, grace: float = 0.0) -> float | None:
        """Return how many seconds to wait for something else, None for any length of time.

        `Future.result`, `Condition.wait` and the like raise OverflowError for an infinite timeout.

        :param grace: wait this much longer.
        """
        seconds = self.remaining() + grace
        return seconds if seconds < threading.TIMEOUT_MAX else None

    def within(self, seconds: float) -> Deadline:
        """Return a deadline that expires after `seconds`, or with this one if that is sooner."""
        return Deadline(min(seconds, self._expires_at - time.monotonic()))

    def but_not_within(self, seconds: float) -> Deadline:
        """Return a deadline that expires together with this one, but not in the next `seconds`."""
        return _ExtendedDeadline(self, seconds)

    def cancel(self) -> None:
        """Expire now: the caller no longer wants the answer."""
        self._expires_at = -math.inf


class _ExtendedDeadline(Deadline):
    __slots__ = ("_original",)

    def __init__(self, original: Deadline, seconds: float) -> None:
        super().__init__(seconds)
        self._original = original

    @property
    def expired(self) -> bool:
        return self._original.expired and super().expired

    def remaining(self) -> float:
        return max(self._original.remaining(), super().remaining())

    def within(self, seconds: float) -> Deadline:
        return Deadline(min(seconds, self.remaining()))
