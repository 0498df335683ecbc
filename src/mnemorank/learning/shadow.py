"""Shadow mode: a candidate scores live traffic without being shown, and later feedback compares it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from sqlalchemy import distinct, func, select
from sqlalchemy.exc import SQLAlchemyError

from mnemorank.errors import MnemorankError
from mnemorank.evaluation.metrics import Judgments, measure
from mnemorank.evaluation.significance import Comparison, compare
from mnemorank.learning.measurement import SetResult
from mnemorank.learning.mining.propensity import Propensities
from mnemorank.learning.mining.votes import SKIPPED, is_small_talk, votes_of_event
from mnemorank.learning.store import schema
from mnemorank.learning.store.events import EventStore
from mnemorank.learning.versions import Version
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model, score_with_truncation

logger = logging.getLogger(__name__)

MAX_SCORED = 100
"""Memories of an event that the candidate scores, from the top."""

_CLOSE_GRACE = 30.0  # seconds for the event that is being scored


class ShadowScorer:
    """Scores shown memories with the current candidate in a background thread.

    No request waits for it: the candidate is also loaded in that thread, and events are skipped when it falls behind.

    :param candidate: returns the version to score with, or None; called every `refresh` seconds while there is traffic.
    :param max_waiting: events that may wait in the queue.
    """

    def __init__(
        self,
        store: EventStore,
        candidate: Callable[[], Version | None],
        *,
        max_waiting: int = 100,
        refresh: float = 2.0,
    ) -> None:
        self.skipped = 0
        self._store, self._candidate, self._refresh = store, candidate, refresh
        self._version: Version | None = None
        self._model: Model | None = None
        self._refreshed_at = -refresh
        self._stop_at = float("inf")
        self._queue: queue.Queue[tuple[str, str, list[Memory]] | None] = queue.Queue(max_waiting)
        self._thread = threading.Thread(target=self._work, name="mnemorank-shadow", daemon=True)
        self._thread.start()

    def observe(self, event_id: str, query: str, shown: Sequence[Memory]) -> None:
        """Queue an event that is already stored, and return at once.

        :param shown: memories in the order of their ranks.
        """
        try:
            self._queue.put_nowait((event_id, query, list(shown[:MAX_SCORED])))
        except queue.Full:
            self.skipped += 1

    def close(self, timeout: float = 5.0) -> None:
        """Score the waiting events as far as the timeout in seconds allows, and unload the model."""
        self._stop_at = time.monotonic() + timeout
        with suppress(queue.Full):
            self._queue.put(None, timeout=timeout)
        self._thread.join(timeout + _CLOSE_GRACE)
        if not self._thread.is_alive():  # otherwise the database does not respond; the thread ends with the process
            self._unload()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if time.monotonic() > self._stop_at:
                self.skipped += 1
                continue
            try:
                self._update_candidate()
                if self._model is not None:
                    self._score(*item)
            except (MnemorankError, SQLAlchemyError, OSError):
                logger.exception("the shadow candidate could not score an event")

    def _update_candidate(self) -> None:
        """Load the candidate if it has changed. One that cannot be loaded is not tried again."""
        if time.monotonic() - self._refreshed_at < self._refresh:
            return
        self._refreshed_at = time.monotonic()
        candidate = self._candidate()
        if candidate == self._version:
            return
        self._unload()
        self._version = candidate
        if candidate is not None:
            logger.info("scoring live traffic with version %s in shadow mode", candidate.name)
            self._model = Model.load(candidate.path, probe=False)

    def _score(self, event_id: str, query: str, shown: Sequence[Memory]) -> None:
        assert self._model is not None
        assert self._version is not None
        scores = score_with_truncation(self._model, query, shown)[0].raw
        rows = [
            {"event_id": event_id, "version": self._version.name, "rank": rank, "score": float(score)}
            for rank, score in enumerate(scores, 1)
            if np.isfinite(score)
        ]
        if rows:
            with self._store.database.writing() as connection:
                connection.execute(schema.shadow_scores.insert(), rows)

    def _unload(self) -> None:
        model, self._model, self._version = self._model, None, None
        if model is not None:
            model.close()


@dataclass(frozen=True, slots=True)
class ShadowResult:
    """How a candidate compares with the models that were served, on events with feedback.

    :param scored: events that the candidate scored.
    :param events: events among them with usable feedback.
    :param served_map: MAP of the shown memories in the order of the served model's scores.
    :param candidate_map: MAP of the same memories in the order of the candidate's scores.
    """

    version: str
    scored: int
    events: int
    served_map: float
    candidate_map: float
    comparison: Comparison


def count_scored_events(store: EventStore, version: str) -> int:
    """Return the number of events that a version scored in shadow mode."""
    table = schema.shadow_scores
    query = select(func.count(distinct(table.c.event_id))).where(table.c.version == version)
    with store.database.reading() as connection:
        return int(connection.execute(query).scalar_one())


def compare_shadow(store: EventStore, version: str, propensities: Propensities | None = None) -> ShadowResult | None:
    """Compare the order by the candidate's scores with the order by the served model's scores.

    Both are raw scores, without first stage, recency and exploration. Both orders contain everything that was shown,
    and an event is weighted by its corrected positive feedback, so that the shown order is neither favored because
    users saw it first nor blamed for every click further down.

    Return None if no event that the candidate scored has usable feedback.
    """
    propensities = propensities or Propensities()
    scores = _load_scores(store, version)
    judgments, served_orders, candidate_orders, weights = [], [], [], []
    for event, signals in store.events(since=_first_scored_time(store, version)):
        candidate_scores = scores.get(event.id)
        if not candidate_scores or event.query is None or is_small_talk(event.query):
            continue
        preference: dict[int, float] = {}
        for vote in votes_of_event(event, signals, propensities):
            if vote.kind != SKIPPED:
                preference[vote.shown.rank] = preference.get(vote.shown.rank, 0.0) + vote.value * vote.weight
        served_scores = {shown.rank: shown.raw_score for shown in event.shown if shown.raw_score is not None}
        ranks = [shown.rank for shown in event.shown if shown.rank in candidate_scores and shown.rank in served_scores]
        is_positive = np.array([preference.get(rank, 0.0) > 0 for rank in ranks])
        if not is_positive.any() or is_positive.all():
            continue
        judgments.append(Judgments(is_positive.astype(np.float64), is_positive))
        served_orders.append(_order([served_scores[rank] for rank in ranks]))
        candidate_orders.append(_order([candidate_scores[rank] for rank in ranks]))
        weights.append(float(np.mean([preference[rank] for rank in ranks if preference.get(rank, 0.0) > 0])))
    if not judgments:
        return None
    served, candidate = (
        SetResult(measure(judgments, orders), np.array(weights)).values("map")
        for orders in (served_orders, candidate_orders)
    )
    return ShadowResult(
        version,
        len(scores),
        len(judgments),
        float(served.mean()),
        float(candidate.mean()),
        compare(candidate, served),
    )


def _order(scores: Sequence[float]) -> list[int]:
    """Indexes by descending score; ties keep the order shown."""
    return sorted(range(len(scores)), key=lambda index: -scores[index])


def _first_scored_time(store: EventStore, version: str) -> float:
    events, table = schema.events, schema.shadow_scores
    query = (
        select(func.min(events.c.time)).join(table, table.c.event_id == events.c.id).where(table.c.version == version)
    )
    with store.database.reading() as connection:
        return float(connection.execute(query).scalar() or 0.0)


def _load_scores(store: EventStore, version: str) -> dict[str, dict[int, float]]:
    """Scores by event id and rank."""
    table = schema.shadow_scores
    scores: dict[str, dict[int, float]] = {}
    with store.database.reading() as connection:
        for row in connection.execute(select(table).where(table.c.version == version)):
            scores.setdefault(row.event_id, {})[row.rank] = row.score
    return scores
