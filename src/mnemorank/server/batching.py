"""Dynamic batching: pairs of concurrent requests share the batches of one scorer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank.errors import ScorerError
from mnemorank.scorers import Passage, Scorer
from mnemorank.scorers.protocol import ForwardingScorer, Pair, PairScorer, Scores
from mnemorank.server.errors import DeadlineError
from mnemorank.server.fair_queue import FairQueue, Job, Share
from mnemorank.server.ticket import Ticket, current_ticket

logger = logging.getLogger(__name__)

ROUND_TOKENS = 512


class CountingScorer(ForwardingScorer):
    """A scorer that notes in the request's ticket what it cost. This is serving without batching."""

    @property
    def waiting_pairs(self) -> int:
        return 0

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scores:
        ticket = current_ticket.get() or Ticket()
        ticket.check()
        self._count(ticket, query, passages)
        started = time.monotonic()
        last = deadline if deadline is not None else ticket.deadline
        scores = self.scorer.score(query, passages, instruction=instruction, deadline=last)
        ticket.spend(0.0, time.monotonic() - started)
        if deadline is None:
            self._check_complete(scores, last)
        return scores

    def _count(self, ticket: Ticket, query: str, passages: Sequence[Passage]) -> list[int]:
        """Note the pairs in the ticket; returns their lengths (special tokens apart)."""
        (asked,) = self.scorer.prepare([query])
        lengths = [asked.length + passage.length for passage in passages]
        ticket.count(len(lengths), sum(lengths))
        return lengths

    def _check_complete(self, scores: Scores, deadline: Deadline | None) -> None:
        if not np.isnan(scores).any():
            return
        if deadline is not None and deadline.expired:
            raise DeadlineError("the request's time ran out before all documents were scored")
        raise ScorerError(f"{self.name}: the model gave a score that is not a number")


class BatchingScorer(CountingScorer):
    """Queues the pairs of each call and scores them in rounds, fair between calls.

    A round is a batch or a few, which the scorer packs, and is run by the thread that took it; so all cores are busy
    while anything waits, and no more threads than cores compete for them. Small rounds keep a small request from
    waiting for much of a large one; they cost nothing on a CPU, where a few pairs fill a core as well as many.

    :param scorer: it should run what it is given in the calling thread; of an OnnxScorer, `threads=1`.
    :param queue_pairs: how many pairs may wait before calls are refused with OverloadedError.
    :param rounds_at_once: the cores to score on. One alone (torch, perhaps on a GPU) gets batches of the full budget.
    """

    def __init__(self, scorer: Scorer, queue_pairs: int = 20_000, rounds_at_once: int = 1) -> None:
        super().__init__(scorer)
        if not isinstance(scorer, PairScorer):
            raise TypeError(f"{scorer.name}: cannot score pairs of different queries")
        self._pair_scorer: PairScorer = scorer
        budget = scorer.token_budget
        self.round_tokens = budget if rounds_at_once == 1 else min(budget, ROUND_TOKENS)
        self._queue = FairQueue(queue_pairs, takers=rounds_at_once)
        self._dispatchers = [
            threading.Thread(target=self._dispatch, name=f"mnemorank-round-{number}", daemon=True)
            for number in range(rounds_at_once)
        ]
        for dispatcher in self._dispatchers:
            dispatcher.start()

    @property
    def waiting_pairs(self) -> int:
        return self._queue.pairs

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
        ticket = current_ticket.get() or Ticket()
        lengths = self._count(ticket, query, passages)
        last = deadline if deadline is not None else ticket.deadline
        pairs = [Pair(query, passage, instruction) for passage in passages]
        job = Job(pairs, lengths, deadline=last, in_order=deadline is not None)
        with ticket.cancellable(job.stop):
            with ticket.admission:
                self._queue.put(job, is_admitted=ticket.is_admitted)
                ticket.is_admitted = True
            try:
                job.done.wait(None if last is None else last.remaining())
            finally:
                job.stop()
                self._queue.drop(job)
        ended = time.monotonic()
        begun = job.begun if job.begun is not None else ended
        ticket.spend(begun - job.queued, ended - begun)
        if job.error is not None:
            raise job.error
        if deadline is None:
            self._check_complete(job.scores, last)
        return job.scores.copy()

    def close(self) -> None:
        self._queue.close()
        for dispatcher in self._dispatchers:
            dispatcher.join()
        super().close()

    def _dispatch(self) -> None:
        while (taken := self._queue.take(self.round_tokens)) is not None:
            self._score_round(taken)

    def _score_round(self, taken: Sequence[Share]) -> None:
        live = [share for share in taken if share.job.is_live]
        for share in taken:
            if not share.job.is_live:
                share.job.settle(share.positions, np.full(len(share.positions), np.nan))
        if not live:
            return
        started = time.monotonic()
        for share in live:
            share.job.begun = share.job.begun or started
        try:
            self._settle(live)
        except Exception as error:
            # One request's pairs may be what fails; the others must not pay for it.
            logger.warning("a round of %d requests failed and is scored request by request: %s", len(live), error)
            for share in live:
                try:
                    self._settle([share])
                except Exception as own_error:
                    share.job.fail(own_error)
        tokens = sum(share.job.lengths[position] for share in live for position in share.positions)
        if tokens:  # a round without any tells nothing of the speed
            self._queue.note_speed(tokens, time.monotonic() - started)

    def _settle(self, shares: Sequence[Share]) -> None:
        scores = self._pair_scorer.score_pairs(
            [share.job.pairs[position] for share in shares for position in share.positions]
        )
        done = 0
        for share in shares:
            share.job.settle(share.positions, scores[done : done + len(share.positions)])
            done += len(share.positions)
