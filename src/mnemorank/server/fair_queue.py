"""FairQueue: the pairs of all requests that wait to be scored, taken in turns."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank.scorers.protocol import Pair, Scores
from mnemorank.server.errors import OverloadedError


class Job:
    """The pairs of one request, and the scores they have so far.

    :param lengths: of each pair, in tokens.
    :param in_order: score the first pairs first (for a deadline); otherwise the longest first, which pads less.
    """

    def __init__(
        self, pairs: Sequence[Pair], lengths: Sequence[int], *, deadline: Deadline | None = None, in_order: bool = False
    ) -> None:
        self.pairs = pairs
        self.lengths = lengths
        self.deadline = deadline
        self.scores: Scores = np.full(len(pairs), np.nan)
        self.error: Exception | None = None
        self.queued = time.monotonic()
        self.begun: float | None = None
        self.done = threading.Event()
        positions = range(len(pairs))
        self.waiting = deque(positions if in_order else sorted(positions, key=lambda i: -lengths[i]))
        self._left = len(pairs)
        self._lock = threading.Lock()

    def settle(self, positions: Sequence[int], scores: Sequence[float] | Scores) -> None:
        """Note scores (NaN for pairs that were given up)."""
        with self._lock:
            self.scores[list(positions)] = scores
            self._left -= len(positions)
            if self._left <= 0:
                self.done.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done.set()

    def stop(self) -> None:
        """Nobody waits for it any more."""
        self.done.set()

    @property
    def is_live(self) -> bool:
        """Whether somebody still waits for it."""
        return not self.done.is_set() and (self.deadline is None or not self.deadline.expired)


class Share(NamedTuple):
    """Some pairs of a job."""

    job: Job
    positions: list[int]


class FairQueue:
    """Jobs wait here; a round takes one pair of each in turn, so that a large request does not hold up a small one.

    :param most_pairs: when so many pairs wait, further jobs are refused. A job that finds the queue empty is taken
        whatever its size: how large a request may be is not the queue's to say.
    :param takers: how many threads take from it, among whom the work is shared.
    """

    def __init__(self, most_pairs: int, takers: int = 1) -> None:
        self.most_pairs = most_pairs
        self.takers = takers
        self.pairs = 0
        self.tokens = 0
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._tokens_per_second = 0.0

    def put(self, job: Job, *, is_admitted: bool = False) -> None:
        """:param is_admitted: the job continues a request that was let in before, so it is not refused."""
        with self._changed:
            if self._closed:
                raise OverloadedError("the server is shutting down", retry_after=1)
            if not is_admitted and self.pairs and self.pairs + len(job.pairs) > self.most_pairs:
                raise OverloadedError(
                    f"the queue is full: {self.pairs} pairs wait and {len(job.pairs)} more would exceed "
                    f"queue_pairs = {self.most_pairs}",
                    retry_after=self.seconds_of_work(),
                )
            self._jobs.append(job)
            self.pairs += len(job.pairs)
            self.tokens += sum(job.lengths)
            self._changed.notify()

    def take(self, tokens: int) -> list[Share] | None:
        """The next round: pairs of all waiting jobs in turn. Waits; None once closed.

        :param tokens: about how many a round may have. It has fewer when little waits: a taker takes its share, and
            leaves the rest to the others, so that none is idle while another still has a long round to run.
        """
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if not self._jobs:
                return None
            taken: dict[Job, list[int]] = {}
            # Pairs without tokens (a zero-width space) still take a place, else nobody would ever take them.
            room = max(1, min(tokens, math.ceil(self.tokens / self.takers)))
            while self._jobs and room > 0:
                job = self._jobs.popleft()
                position = job.waiting.popleft()
                taken.setdefault(job, []).append(position)
                self._forget(job, [position])
                room -= max(job.lengths[position], 1)
                if job.waiting:
                    self._jobs.append(job)
            if self._jobs:
                self._changed.notify()
            return [Share(job, positions) for job, positions in taken.items()]

    def drop(self, job: Job) -> None:
        """Forget the pairs of a job that still wait."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
                self._forget(job, list(job.waiting))
                job.waiting.clear()

    def close(self) -> None:
        """Refuse further jobs; what waits is still handed out."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def note_speed(self, tokens: int, seconds: float) -> None:
        """Remember how fast rounds are scored, for `seconds_of_work`."""
        speed = tokens / max(seconds, 1e-6)
        with self._changed:
            self._tokens_per_second = 0.8 * self._tokens_per_second + 0.2 * speed if self._tokens_per_second else speed

    def seconds_of_work(self) -> int:
        """How long the waiting pairs will take, as whole seconds from 1 to 60."""
        return max(1, min(60, round(self.tokens / self._tokens_per_second))) if self._tokens_per_second else 1

    def _forget(self, job: Job, positions: Sequence[int]) -> None:
        self.pairs -= len(positions)
        self.tokens -= sum(job.lengths[position] for position in positions)
