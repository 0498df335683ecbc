"""Failover: several models in order of preference; the first that responds in time scores the memories."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank._internal.validation import check_number
from mnemorank.artifact.manifest import Manifest
from mnemorank.errors import InputError, MnemorankError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.model.lazy import LazyModel
from mnemorank.model.model import Scored, Scoring

logger = logging.getLogger(__name__)

BreakerState = Literal["closed", "open", "half-open"]

# A model that keeps the deadline returns what it has right after it.
_GRACE = 0.05


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """The state of one model of a chain, for health checks and metrics.

    :param answered: calls in which it scored all memories.
    :param failed: calls that count as failures.
    """

    name: str
    state: BreakerState
    answered: int
    failed: int
    last_error: str | None


class Failover:
    """A chain of models that is used like a single model.

        reranker = Reranker(Failover(["cohere:rerank-v3.5", "mini"], timeouts=[2, None]))

    Each model keeps its own format, calibration and thresholds; `Ranking.scored_by` names the one that scored. If all
    fail, the ranking is in first-stage order and its `degraded` gives the reason of each model.

    :param models: in order of preference. Names are loaded on first use.
    :param timeouts: seconds for each model, or one number for all but the last; None for no limit other than the
        deadline of the request.
    :param failures: consecutive failures after which a model is skipped.
    :param cooldown: seconds for which it is skipped before one call tries it again.
    """

    def __init__(
        self,
        models: Sequence[Scoring | str | Path],
        *,
        timeouts: float | Sequence[float | None] | None = None,
        failures: int = 3,
        cooldown: float = 30.0,
    ) -> None:
        if not models or isinstance(models, str):
            raise InputError("expected a list of at least one model", field="models")
        check_number("failures", failures, 1, whole=True)
        check_number("cooldown", cooldown, 0)
        self._arguments = (models, timeouts, failures, cooldown)
        self._members = [
            _Member(
                LazyModel(model) if isinstance(model, (str, Path)) else model,
                timeout,
                CircuitBreaker(failures, cooldown),
            )
            for model, timeout in zip(models, _timeouts_per_model(timeouts, len(models)), strict=True)
        ]

    def __reduce__(self) -> tuple[Callable[..., Failover], tuple[Any, ...]]:
        """Pickle and copy by the constructor arguments, with closed circuits."""
        return _create, self._arguments

    @property
    def manifest(self) -> Manifest:
        """The manifest of the preferred model; `Scored.manifest` is that of the model that scored."""
        return self._members[0].model.manifest

    def score(
        self,
        query: str,
        memories: Sequence[Memory],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scored:
        """Score with the first model that scores all memories, else with the one that scores most."""
        request = _Request(query, memories, instruction, deadline)
        errors: list[MnemorankError] = []
        best: Scored | None = None
        for member in self._members:
            try:
                scored = member.score(request)
            except MnemorankError as error:
                errors.append(error)
                continue
            unscored = request.count_unscored(scored)
            if not unscored:
                return scored
            if best is None or unscored < request.count_unscored(best):
                best = scored
        if best is not None:
            return best
        if all(isinstance(error, InputError) for error in errors):
            raise errors[0]
        raise ScorerError("all models failed: " + "; ".join(map(str, errors)))

    def count_tokens(self, memories: Sequence[Memory]) -> list[int]:
        """Count tokens with the first model that can."""
        errors: list[MnemorankError] = []
        for member in self._members:
            try:
                return member.model.count_tokens(memories)
            except MnemorankError as error:
                errors.append(error)
        raise errors[0]

    def status(self) -> list[ModelStatus]:
        """Return the state of each model, in order of preference."""
        return [
            ModelStatus(member.name, member.breaker.state, member.answered, member.failed, member.last_error)
            for member in self._members
        ]

    def close(self) -> None:
        for member in self._members:
            member.model.close()


def _create(models: Sequence[Scoring | str | Path], timeouts: Any, failures: int, cooldown: float) -> Failover:
    return Failover(models, timeouts=timeouts, failures=failures, cooldown=cooldown)


class _Request(NamedTuple):
    query: str
    memories: Sequence[Memory]
    instruction: str | None
    deadline: Deadline | None

    def count_unscored(self, scored: Scored) -> int:
        """Return how many memories with text have no score."""
        missing = np.isnan(scored.raw)
        return sum(bool(missing[i]) and bool(memory.text.strip()) for i, memory in enumerate(self.memories))


class _Member:
    """One model of a chain with its timeout and circuit breaker."""

    def __init__(self, model: Scoring, timeout: float | None, breaker: CircuitBreaker) -> None:
        self.model, self.timeout, self.breaker = model, timeout, breaker
        self.name = model.name if isinstance(model, LazyModel) else model.manifest.name
        self.answered = self.failed = 0
        self.last_error: str | None = None
        self._lock = threading.Lock()

    def score(self, request: _Request) -> Scored:
        """Score some or all memories and report the outcome to the circuit breaker."""
        if request.deadline is not None and request.deadline.expired:
            raise ScorerError(f"{self.name}: skipped: deadline exceeded")
        if not self.breaker.allow_call():
            raise ScorerError(f"{self.name}: circuit open after repeated failures; last error: {self.last_error}")
        deadline, is_callers = self._deadline(request.deadline)
        try:
            scored = self._call(request, deadline)
        except InputError:  # a query that is too long for this model may fit the next one
            self.breaker.release()
            raise
        except ScorerError as error:
            if is_callers and deadline is not None and deadline.expired:
                self.breaker.release()
            else:
                self._record_failure(str(error))
            raise
        except Exception as error:  # user-defined models may raise anything
            self._record_failure(f"{self.name}: {type(error).__name__}: {error}")
            raise ScorerError(self.last_error) from error
        unscored = request.count_unscored(scored)
        if not unscored:
            self._record_success()
        elif deadline is not None and not is_callers:
            self._record_failure(f"{self.name}: {unscored} of {len(request.memories)} memories were not scored in time")
        else:
            self.breaker.release()
        return scored

    def _deadline(self, deadline: Deadline | None) -> tuple[Deadline | None, bool]:
        """Return the deadline of a call, and whether it is the caller's rather than the timeout of this model."""
        if self.timeout is None or (deadline is not None and deadline.remaining() <= self.timeout):
            return deadline, True
        return Deadline(self.timeout), False

    def _call(self, request: _Request, deadline: Deadline | None) -> Scored:
        """Call the model, and return at the deadline even if the model does not."""
        query, memories, instruction, _ = request
        if deadline is None:
            return self.model.score(query, memories, instruction=instruction)
        result: Future[Scored] = Future()

        def run() -> None:
            try:
                result.set_result(self.model.score(query, memories, instruction=instruction, deadline=deadline))
            except BaseException as error:
                result.set_exception(error)

        # A separate thread, which may be abandoned: calls that hang would fill up a pool.
        threading.Thread(target=run, name=f"score {self.name}", daemon=True).start()
        try:
            return result.result(deadline.timeout(_GRACE))
        except TimeoutError:
            raise ScorerError(f"{self.name}: timed out") from None

    def _record_success(self) -> None:
        self.breaker.record_success()
        with self._lock:
            self.answered += 1

    def _record_failure(self, reason: str) -> None:
        self.breaker.record_failure()
        with self._lock:
            self.failed += 1
            self.last_error = reason
        logger.warning("failover: %s", reason)


def _timeouts_per_model(timeouts: float | Sequence[float | None] | None, count: int) -> list[float | None]:
    """Return one timeout per model; a single number holds for all but the last, which has no substitute."""
    if timeouts is None or isinstance(timeouts, (int, float)):
        limits: list[float | None] = [*[timeouts] * (count - 1), None]
    else:
        limits = list(timeouts)
    if len(limits) != count:
        raise InputError(f"expected {count} values, one per model, got {len(limits)}", field="timeouts")
    for limit in limits:
        if limit is not None and not limit > 0:
            raise InputError(f"expected seconds above 0 or None, got {limit!r}", field="timeouts")
    return limits


class CircuitBreaker:
    """Lets calls pass until `failures` in a row have failed, then none for `cooldown` seconds, then a single trial.

    Every call that was allowed must end with `record_success`, `record_failure` or, if it says nothing about the
    model, `release`.

    :param clock: a monotonic clock, in seconds.
    """

    def __init__(self, failures: int = 3, cooldown: float = 30.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_failures, self._cooldown, self._clock = failures, cooldown, clock
        self._failures = 0
        self._opened_at: float | None = None
        self._is_on_trial = False
        self._lock = threading.Lock()

    @property
    def state(self) -> BreakerState:
        with self._lock:
            return self._state()

    def allow_call(self) -> bool:
        """Return whether a call may be made now. In the half-open state only one may, the trial."""
        with self._lock:
            state = self._state()
            if state == "half-open" and not self._is_on_trial:
                self._is_on_trial = True
                return True
            return state == "closed"

    def record_success(self) -> None:
        with self._lock:
            self._failures, self._opened_at, self._is_on_trial = 0, None, False

    def record_failure(self) -> None:
        with self._lock:
            self._failures += 1
            self._is_on_trial = False
            if self._failures >= self._max_failures:
                self._opened_at = self._clock()

    def release(self) -> None:
        """End a call without an outcome."""
        with self._lock:
            self._is_on_trial = False

    def _state(self) -> BreakerState:
        if self._opened_at is None:
            return "closed"
        return "half-open" if self._clock() - self._opened_at >= self._cooldown else "open"
