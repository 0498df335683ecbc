"""Ctrl-C and `kill` ask a training to save and stop; a second one stops it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from mnemorank.errors import MnemorankError


class InterruptedTrainingError(MnemorankError):
    """Training was asked to stop, and has saved where it stood."""


class StopRequest:
    def __init__(self) -> None:
        self.is_set = False

    def __call__(self) -> bool:
        return self.is_set


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn SIGINT and SIGTERM into a request, for the length of the block. Only the main thread can."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def on_signal(number: int, frame: FrameType | None) -> None:
        if request.is_set:
            raise KeyboardInterrupt
        request.is_set = True

    previous = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
