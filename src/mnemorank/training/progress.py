"""Progress of a training run, and requests to stop it."""

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
    """The state of a training run after a step or an evaluation.

    :param loss: smoothed over the last steps.
    :param dev: the last dev score; None before the first.
    :param seconds_left: the estimated time to the end of the stage, evaluations included.
    :param is_evaluation: whether the dev score is new.
    :param evaluates_next: whether an evaluation is about to start.
    """

    stage: str
    stage_number: int
    stage_count: int
    step: int
    steps: int
    loss: float
    dev: float | None
    seconds_left: float
    is_evaluation: bool = False
    evaluates_next: bool = False


ProgressCallback = Callable[[Progress], None]
MessageCallback = Callable[[str], None]


class ProgressReporter(TrainerCallback):
    """Calls back after every step and every evaluation.

    :param evaluation_seconds: the duration of an earlier evaluation, such as that of the base.
    """

    def __init__(
        self, callback: ProgressCallback, stage_number: int, stage_count: int, evaluation_seconds: float = 0.0
    ) -> None:
        self._callback, self._stage_number, self._stage_count = callback, stage_number, stage_count
        self._evaluation_seconds = evaluation_seconds
        self._loss: float | None = None
        self._dev: float | None = None
        self._training_seconds = 0.0
        self._lap_start = time.monotonic()
        self._first_step = 0
        self.trainer: StageTrainer | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._lap_start, self._first_step = time.monotonic(), state.global_step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        assert self.trainer is not None
        self._training_seconds += self._lap()
        loss = self.trainer.last_loss
        self._loss = loss if self._loss is None else 0.95 * self._loss + 0.05 * loss
        self._report(state, is_evaluation=False)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        self._evaluation_seconds, self._dev = self._lap(), metrics["dev"]
        self._report(state, is_evaluation=True)

    def _report(self, state: Any, *, is_evaluation: bool) -> None:
        assert self.trainer is not None
        assert self._loss is not None
        step_seconds = self._training_seconds / max(state.global_step - self._first_step, 1)
        evaluates_next = not is_evaluation and self.trainer.evaluates_after(state.global_step)
        evaluations = self.trainer.evaluations_left(state.global_step) + evaluates_next
        left = step_seconds * (state.max_steps - state.global_step) + self._evaluation_seconds * evaluations
        self._callback(
            Progress(
                self.trainer.stage.name,
                self._stage_number,
                self._stage_count,
                state.global_step,
                state.max_steps,
                self._loss,
                self._dev,
                left,
                is_evaluation,
                evaluates_next,
            )
        )

    def _lap(self) -> float:
        """Return the seconds since the last lap and start a new one."""
        before, self._lap_start = self._lap_start, time.monotonic()
        return self._lap_start - before


class InterruptedTrainingError(MnemorankError):
    """Training was interrupted and has saved a checkpoint."""


class StopRequest:
    def __init__(self) -> None:
        self.is_set = False

    def __call__(self) -> bool:
        return self.is_set


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM in the block into a stop request. Works in the main thread only."""
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
