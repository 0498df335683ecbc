"""Failover: several models in order of preference; the first that answers in time scores."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.manifest import Manifest
from mnemorank.errors import InputError, MnemorankError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.model.lazy import LazyModel
from mnemorank.model.model import Scored, Scoring

logger = logging.getLogger(__name__)

# A model that keeps the deadline itself hands in what it has right after it.
_GRACE = 0.05


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """How one model of the chain is doing, for health checks and metrics."""

    name: str
    state: State
    answered: int
    failed: int
    last_error: str | None


class Failover:
    """A chain of models that is used like one model.

    >>> reranker = Reranker(Failover(["cohere:rerank-v3.5", "mini"], timeouts=[2, None]))

    Each model keeps its own format, calibration and thresholds; a ranking's `scored_by` says which one scored. If none
    can, the ranking is the first stage's, marked `degraded` with every model's reason.

    :param models: in order of preference; names are loaded when they are first needed.
    :param timeouts: seconds that each model has, or one number for all but the last; None sets no limit but the
        request's own deadline.
    :param failures: in a row, after which a model is left alone.
    :param cooldown: seconds for which it is, before one call tries it again.
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
        if failures < 1:
            raise InputError(f"expected a whole number from 1, got {failures!r}", field="failures")
        if not cooldown >= 0:
            raise InputError(f"expected a number of seconds from 0, got {cooldown!r}", field="cooldown")
        self._links = [
            _Link(LazyModel(model) if isinstance(model, (str, Path)) else model, limit, Breaker(failures, cooldown))
            for model, limit in zip(models, _spread(timeouts, len(models)), strict=True)
        ]

    @property
    def manifest(self) -> Manifest:
        """The preferred model's; the one that scored is in `Scored.manifest`."""
        return self._links[0].model.manifest

    def score(
        self,
        query: str,
        memories: Sequence[Memory],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scored:
        request = _Request(query, memories, instruction, deadline)
        problems: list[MnemorankError] = []
        best: Scored | None = None
        for link in self._links:
            try:
                scored = link.ask(request)
            except MnemorankError as error:
                problems.append(error)
                continue
            unscored = request.unscored(scored)
            if not unscored:
                return scored
            if best is None or unscored < request.unscored(best):
                best = scored
        if best is not None:
            return best
        if all(isinstance(problem, InputError) for problem in problems):
            raise problems[0]
        raise ScorerError("no model answered: " + "; ".join(map(str, problems)))

    def count_tokens(self, memories: Sequence[Memory]) -> list[int]:
        """By the first model that can."""
        problems: list[MnemorankError] = []
        for link in self._links:
            try:
                return link.model.count_tokens(memories)
            except MnemorankError as error:
                problems.append(error)
        raise problems[0]

    def status(self) -> list[LinkStatus]:
        return [
            LinkStatus(link.name, link.breaker.state, link.answered, link.failed, link.last_error)
            for link in self._links
        ]

    def close(self) -> None:
        for link in self._links:
            link.model.close()


class _Request(NamedTuple):
    query: str
    memories: Sequence[Memory]
    instruction: str | None
    deadline: Deadline | None

    def unscored(self, scored: Scored) -> int:
        missing = np.isnan(scored.raw)
        return sum(bool(missing[i]) and bool(memory.text.strip()) for i, memory in enumerate(self.memories))


class _Link:
    """One model of the chain with its time limit and its breaker."""

    def __init__(self, model: Scoring, timeout: float | None, breaker: Breaker) -> None:
        self.model, self.timeout, self.breaker = model, timeout, breaker
        self.name = model.name if isinstance(model, LazyModel) else model.manifest.name
        self.answered = self.failed = 0
        self.last_error: str | None = None
        self._lock = threading.Lock()

    def ask(self, request: _Request) -> Scored:
        """Score, perhaps not all; every outcome is told to the breaker."""
        if request.deadline is not None and request.deadline.expired:
            raise ScorerError(f"{self.name}: not asked, the time was up")
        if not self.breaker.allows():
            raise ScorerError(f"{self.name}: left alone after failures, the last of them: {self.last_error}")
        limit, hurry = self._limits(request.deadline)
        try:
            scored = self._call(request, limit)
        except InputError:  # a query that is too long for this model may fit the next
            self.breaker.withdrew()
            raise
        except ScorerError as error:
            if hurry is not None and hurry.expired:
                self.breaker.withdrew()
            else:
                self._fail(str(error))
            raise
        except Exception as error:  # whatever a model of the user's own raises, the chain goes on
            self._fail(f"{self.name}: {type(error).__name__}: {error}")
            raise ScorerError(self.last_error) from error
        unscored = request.unscored(scored)
        if not unscored:
            self._succeed()
        elif limit is not None and hurry is None:
            self._fail(f"{self.name}: {unscored} of {len(request.memories)} memories were not scored in time")
        else:
            self.breaker.withdrew()
        return scored

    def _limits(self, deadline: Deadline | None) -> tuple[Deadline | None, Deadline | None]:
        """Return the time limit of a call, and the same again if it is the caller's and not the model's own."""
        if self.timeout is None:
            return deadline, deadline
        if deadline is None or deadline.remaining() > self.timeout:
            return Deadline(self.timeout), None
        return deadline, deadline

    def _call(self, request: _Request, limit: Deadline | None) -> Scored:
        """Ask the model, and come back in time even if it does not."""
        query, memories, instruction, _ = request
        if limit is None:
            return self.model.score(query, memories, instruction=instruction)
        result: Future[Scored] = Future()

        def run() -> None:
            try:
                result.set_result(self.model.score(query, memories, instruction=instruction, deadline=limit))
            except BaseException as error:
                result.set_exception(error)

        # A thread of its own that may be left behind: a pool would fill up with calls that hang.
        threading.Thread(target=run, name=f"score {self.name}", daemon=True).start()
        try:
            return result.result(limit.remaining() + _GRACE)
        except TimeoutError:
            raise ScorerError(f"{self.name}: no answer in time") from None

    def _succeed(self) -> None:
        self.breaker.succeeded()
        with self._lock:
            self.answered += 1

    def _fail(self, reason: str) -> None:
        self.breaker.failed()
        with self._lock:
            self.failed += 1
            self.last_error = reason
        logger.warning("failover: %s", reason)


def _spread(timeouts: float | Sequence[float | None] | None, count: int) -> list[float | None]:
    """One limit a model; a single number is for all but the last, which nobody could stand in for."""
    if timeouts is None or isinstance(timeouts, (int, float)):
        limits: list[float | None] = [*[timeouts] * (count - 1), None]
    else:
        limits = list(timeouts)
    if len(limits) != count:
        raise InputError(f"expected {count}, one a model, got {len(limits)}", field="timeouts")
    for limit in limits:
        if limit is not None and not limit > 0:
            raise InputError(f"expected seconds above 0 or None, got {limit!r}", field="timeouts")
    return limits


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
