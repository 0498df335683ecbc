"""How far a training is, for whoever shows it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from mnemorank.errors import MnemorankError
from mnemorank.training.trainer import StageTrainer


@dataclass(frozen=True, slots=True)
class Progress:
    """:param loss: smoothed over the last steps.
    :param dev: the last dev score, None before the first.
    :param seconds_left: of this stage, by the pace so far and what a measurement takes.
    :param is_measurement: whether the dev score is new.
    :param measures_next: whether a measurement is about to begin.
    """

    stage: str
    number: int
    stages: int
    step: int
    steps: int
    loss: float
    dev: float | None
    seconds_left: float
    is_measurement: bool = False
    measures_next: bool = False


Report = Callable[[Progress], None]
Say = Callable[[str], None]


class Reporting(TrainerCallback):
    """Tells `report` after every step and every measurement.

    :param measuring: seconds that a measurement took before, such as that of the base.
    """

    def __init__(self, report: Report, number: int, stages: int, measuring: float = 0.0) -> None:
        self._report, self._number, self._stages = report, number, stages
        self._measuring = measuring
        self._loss: float | None = None
        self._dev: float | None = None
        self._training = 0.0
        self._marked = time.monotonic()
        self._first = 0
        self.trainer: StageTrainer | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._marked, self._first = time.monotonic(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.trainer is not None
        self._training += self._since_mark()
        loss = self.trainer.last_loss
        self._loss = loss if self._loss is None else 0.95 * self._loss + 0.05 * loss
        self._tell(state, is_measurement=False)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self._measuring, self._dev = self._since_mark(), metrics["dev"]
        self._tell(state, is_measurement=True)

    def _tell(self, state: Any, *, is_measurement: bool) -> None:
        assert self.trainer is not None
        assert self._loss is not None
        pace = self._training / max(state.global_step - self._first, 1)
        measures_next = not is_measurement and self.trainer.is_due(state.global_step)
        measurements = self.trainer.measurements_after(state.global_step) + measures_next
        left = pace * (state.max_steps - state.global_step) + self._measuring * measurements
        self._report(
            Progress(
                self.trainer.stage.name,
                self._number,
                self._stages,
                state.global_step,
                state.max_steps,
                self._loss,
                self._dev,
                left,
                is_measurement,
                measures_next,
            )
        )

    def _since_mark(self) -> float:
        """Seconds since the last mark, which is set anew."""
        before, self._marked = self._marked, time.monotonic()
        return self._marked - before


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
