"""Dynamic batching: pairs of concurrent requests share the batches of one scorer."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank.scorers import Passage, Scorer
from mnemorank.scorers.protocol import ForwardingScorer, Pair, PairScorer, Scores
from mnemorank.server.admission import Admission, Work
from mnemorank.server.errors import OverloadedError
from mnemorank.server.requests import ActiveRequest, current_request

logger = logging.getLogger(__name__)

_ROUND_TOKENS = 512


class CountingScorer(ForwardingScorer):
    """A scorer that adds its cost to the current request. Used directly, it serves without batching."""

    @property
    def waiting_pairs(self) -> int:
        return 0

    @contextmanager
    def admitted(self, work: Work) -> Iterator[None]:
        """Admit the current request for the duration of the block, or raise `OverloadedError`."""
        yield

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scores:
        request = current_request.get() or ActiveRequest()
        request.raise_if_canceled()
        self._add_usage(request, query, passages)
        started = time.monotonic()
        scores = self.scorer.score(query, passages, instruction=instruction, deadline=deadline)
        request.add_seconds(0.0, time.monotonic() - started)
        return scores

    def _add_usage(self, request: ActiveRequest, query: str, passages: Sequence[Passage]) -> list[int]:
        """Add the pairs to the request's usage and return their lengths without special tokens."""
        (query_tokens,) = self.scorer.prepare([query])
        lengths = [query_tokens.length + passage.length for passage in passages]
        request.add_usage(len(lengths), sum(lengths))
        return lengths


class BatchingScorer(CountingScorer):
    """Queues the pairs of all calls and scores them in rounds, fairly between calls.

    A round is one batch or a few and runs in the thread that took it from the queue, one thread per core. Small rounds
    keep a small request from waiting for a large one and cost nothing on a CPU, where a few pairs fill a core.

    :param scorer: should run in the calling thread; for an `OnnxScorer`, `threads=1`.
    :param queue_pairs: how many pairs may wait before requests are refused with `OverloadedError`.
    :param workers: the number of threads. A single one (torch, perhaps on a GPU) gets batches of the full budget.
    """

    def __init__(self, scorer: Scorer, queue_pairs: int = 20_000, workers: int = 1) -> None:
        super().__init__(scorer)
        if not isinstance(scorer, PairScorer):
            raise TypeError(f"{scorer.name}: cannot score pairs of different queries")
        self._pair_scorer: PairScorer = scorer
        self._round_tokens = scorer.token_budget if workers == 1 else min(scorer.token_budget, _ROUND_TOKENS)
        self._admission = Admission(queue_pairs)
        self._queue = FairQueue(workers)
        self._threads = [
            threading.Thread(target=self._work, name=f"mnemorank-batch-{number}", daemon=True)
            for number in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting_pairs(self) -> int:
        return self._queue.pairs

    @contextmanager
    def admitted(self, work: Work) -> Iterator[None]:
        request = current_request.get() or ActiveRequest()
        with self._admission.admit(work, request.deadline) as load:
            request.on_scored = partial(self._admission.record, load)
            try:
                yield
            finally:
                request.on_scored = None

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scores:
        if not passages:
            return np.zeros(0)
        request = current_request.get() or ActiveRequest()
        lengths = self._add_usage(request, query, passages)
        pairs = [Pair(query, passage, instruction) for passage in passages]
        in_order = deadline is not None and not request.needs_all
        job = Job(pairs, lengths, deadline=deadline, in_order=in_order, on_scored=request.add_scored)
        with request.on_cancel(job.stop):
            self._queue.put(job)
            try:
                job.done.wait(None if deadline is None else deadline.timeout())
            finally:
                job.stop()
                self._queue.drop(job)
        ended = time.monotonic()
        started = job.started if job.started is not None else ended
        request.add_seconds(started - job.queued, ended - started)
        if job.error is not None:
            raise job.error
        return job.scores.copy()

    def close(self) -> None:
        self._queue.close()
        for thread in self._threads:
            thread.join()
        super().close()

    def _work(self) -> None:
        while (shares := self._queue.take(self._round_tokens)) is not None:
            self._score_round(shares)

    def _score_round(self, shares: Sequence[Share]) -> None:
        live = [share for share in shares if share.job.is_live]
        for share in shares:
            if not share.job.is_live:
                share.job.settle(share.positions, np.full(len(share.positions), np.nan))
        if not live:
            return
        started = time.monotonic()
        for share in live:
            share.job.started = share.job.started or started
        try:
            self._score_shares(live)
        except Exception as error:
            # The pairs of a single request may be the cause; the other requests must not fail with it.
            logger.warning("a batch of %d requests failed; retrying them one by one: %s", len(live), error)
            for share in live:
                try:
                    self._score_shares([share])
                except Exception as share_error:
                    share.job.fail(share_error)

    def _score_shares(self, shares: Sequence[Share]) -> None:
        scores = self._pair_scorer.score_pairs(
            [share.job.pairs[position] for share in shares for position in share.positions]
        )
        first = 0
        for share in shares:
            share.job.on_scored(len(share.positions), share.characters)
            share.job.settle(share.positions, scores[first : first + len(share.positions)])
            first += len(share.positions)


class Job:
    """The pairs of one call and the scores known so far.

    :param lengths: of each pair, in tokens.
    :param in_order: score the pairs in the given order, so that a deadline cuts off the last ones; otherwise the
        longest first, which needs less padding.
    :param on_scored: called with the number of pairs and characters that were scored.
    """

    def __init__(
        self,
        pairs: Sequence[Pair],
        lengths: Sequence[int],
        *,
        deadline: Deadline | None = None,
        in_order: bool = False,
        on_scored: Callable[[int, int], None] = lambda pairs, characters: None,
    ) -> None:
        self.pairs = pairs
        self.on_scored = on_scored
        self.lengths = lengths
        self.deadline = deadline
        self.scores: Scores = np.full(len(pairs), np.nan)
        self.error: Exception | None = None
        self.queued = time.monotonic()
        self.started: float | None = None
        self.done = threading.Event()
        positions = range(len(pairs))
        self.waiting = deque(positions if in_order else sorted(positions, key=lambda i: -lengths[i]))
        self._remaining = len(pairs)
        self._lock = threading.Lock()

    def settle(self, positions: Sequence[int], scores: Sequence[float] | Scores) -> None:
        """Store scores; NaN for pairs that were abandoned."""
        with self._lock:
            self.scores[list(positions)] = scores
            self._remaining -= len(positions)
            if self._remaining <= 0:
                self.done.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done.set()

    def stop(self) -> None:
        """Abandon the job: nobody is waiting for its scores anymore."""
        self.done.set()

    @property
    def is_live(self) -> bool:
        return not self.done.is_set() and (self.deadline is None or not self.deadline.expired)


class Share(NamedTuple):
    """Some pairs of a job."""

    job: Job
    positions: list[int]

    @property
    def characters(self) -> int:
        pairs = (self.job.pairs[position] for position in self.positions)
        return sum(len(pair.query) + len(pair.passage.text) for pair in pairs)


class FairQueue:
    """Jobs that wait to be scored. A round takes a pair of each in turn, so that large jobs do not block small ones.

    :param workers: the number of threads that take rounds.
    """

    def __init__(self, workers: int = 1) -> None:
        self.workers = workers
        self.pairs = 0
        self.tokens = 0
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, job: Job) -> None:
        """Add a job."""
        with self._changed:
            if self._closed:
                raise OverloadedError("the server is shutting down", retry_after=1)
            self._jobs.append(job)
            self.pairs += len(job.pairs)
            self.tokens += sum(job.lengths)
            self._changed.notify()

    def take(self, tokens: int) -> list[Share] | None:
        """Wait for pairs and return the next round, or None once the queue is closed and empty.

        :param tokens: the approximate size of a round. When little waits, a round is smaller, so that all workers
            share the work.
        """
        with self._changed:
            while not self._jobs and not self._closed:
                self._changed.wait()
            if not self._jobs:
                return None
            positions: dict[Job, list[int]] = {}
            room = max(1, min(tokens, math.ceil(self.tokens / self.workers)))
            while self._jobs and room > 0:
                job = self._jobs.popleft()
                position = job.waiting.popleft()
                positions.setdefault(job, []).append(position)
                self._remove(job, [position])
                room -= max(job.lengths[position], 1)  # a pair without tokens (a zero-width space) counts too
                if job.waiting:
                    self._jobs.append(job)
            if self._jobs:
                self._changed.notify()
            return [Share(job, taken) for job, taken in positions.items()]

    def drop(self, job: Job) -> None:
        """Remove the pairs of a job that still wait."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
                self._remove(job, list(job.waiting))
                job.waiting.clear()

    def close(self) -> None:
        """Refuse further jobs; those that wait are still scored."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _remove(self, job: Job, positions: Sequence[int]) -> None:
        self.pairs -= len(positions)
        self.tokens -= sum(job.lengths[position] for position in positions)
