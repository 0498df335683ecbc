"""Shadow mode: a candidate scores live traffic without being shown, and its scores are kept with the event."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import distinct, func, select
from sqlalchemy.exc import SQLAlchemyError

from mnemorank.errors import MnemorankError
from mnemorank.evaluation.metrics import Judgments, measure
from mnemorank.evaluation.significance import Comparison, compare
from mnemorank.learning.measurement import SetResult
from mnemorank.learning.mining.evidence import SKIPPED, is_chitchat, votes
from mnemorank.learning.mining.propensity import Propensities
from mnemorank.learning.store import schema
from mnemorank.learning.store.events import EventStore
from mnemorank.learning.versions import Version
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model, score_with_truncation

logger = logging.getLogger(__name__)

Observed = tuple[str, str, list[Memory]]
MOST_SCORED = 100


class Shadow:
    """Scores what was shown with the candidate of the day, in a thread that stands back.

    Nobody waits for it: loading the candidate happens there too, and when it cannot keep up events are skipped.

    :param candidate: the version to follow, None for none; asked every `refresh` seconds while there is traffic.
    :param waiting: events that may wait for it.
    """

    def __init__(
        self,
        store: EventStore,
        candidate: Callable[[], Version | None],
        *,
        waiting: int = 100,
        refresh: float = 2.0,
    ) -> None:
        self.skipped = 0
        self._store, self._candidate, self._refresh = store, candidate, refresh
        self._version: Version | None = None
        self._model: Model | None = None
        self._asked_at = -refresh
        self._give_up_at = float("inf")
        self._queue: queue.Queue[Observed | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._work, name="mnemorank-shadow", daemon=True)
        self._thread.start()

    def observe(self, event_id: str, query: str, shown: Sequence[Memory]) -> None:
        """Take an event that is already stored; returns at once.

        :param shown: in the order of their positions.
        """
        try:
            self._queue.put_nowait((event_id, query, list(shown[:MOST_SCORED])))
        except queue.Full:
            self.skipped += 1

    def close(self, seconds: float = 5.0) -> None:
        """Finish what waits, as far as the time allows, then give the model back."""
        self._give_up_at = time.monotonic() + seconds
        self._queue.put(None)
        self._thread.join()
        self._unload()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            if time.monotonic() > self._give_up_at:
                self.skipped += 1
                continue
            try:
                self._follow()
                if self._model is not None:
                    self._score(*item)
            except (MnemorankError, SQLAlchemyError, OSError):
                logger.exception("the shadow model could not score an event")

    def _follow(self) -> None:
        """Load the candidate if it has changed. One that cannot be loaded is not tried again."""
        if time.monotonic() - self._asked_at < self._refresh:
            return
        self._asked_at = time.monotonic()
        wanted = self._candidate()
        if wanted == self._version:
            return
        self._unload()
        self._version = wanted
        if wanted is not None:
            logger.info("version %s scores in the shadow", wanted.name)
            self._model = Model.load(wanted.path, probe=False)

    def _score(self, event_id: str, query: str, shown: Sequence[Memory]) -> None:
        assert self._model is not None
        assert self._version is not None
        raw = score_with_truncation(self._model, query, shown)[0].raw
        rows = [
            {"event_id": event_id, "version": self._version.name, "position": position, "score": float(score)}
            for position, score in enumerate(raw)
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
    """:param events: with feedback, of all that were scored.
    :param shown, candidate: MAP of what was shown, in the order of the scores of the model in service and of the
        candidate's.
    """

    version: str
    scored: int
    events: int
    shown: float
    candidate: float
    comparison: Comparison


def count_scored(store: EventStore, version: str) -> int:
    """How many events a version has scored in the shadow."""
    table = schema.shadow_scores
    query = select(func.count(distinct(table.c.event_id))).where(table.c.version == version)
    with store.database.reading() as connection:
        return int(connection.execute(query).scalar_one())


def compare_shadow(store: EventStore, version: str, propensities: Propensities | None = None) -> ShadowResult | None:
    """Order what was shown by either model's scores, and see where the memories with good feedback stand.

    Raw scores both: first-stage evidence, recency and exploration are no merit of the model in service. All that was
    shown stands in both orders, and an event counts by the corrected weight of its good feedback, so that the order
    that was shown has neither the advantage of having been seen first nor the blame of every click below.
    None before any event that the candidate scored has feedback.
    """
    propensities = propensities or Propensities()
    scores = _scores(store, version)
    judged, shown_order, own_order, weights = [], [], [], []
    for event, signals in store.events(since=_first_scored(store, version)):
        own = scores.get(event.id)
        if not own or event.query is None or is_chitchat(event.query):
            continue
        liked: dict[int, float] = {}
        for vote in votes(event, signals, propensities):
            if vote.kind != SKIPPED:
                liked[vote.shown.position] = liked.get(vote.shown.position, 0.0) + vote.value * vote.weight
        served = {shown.position: shown.raw_score for shown in event.shown if shown.raw_score is not None}
        places = [shown.position for shown in event.shown if shown.position in own and shown.position in served]
        good = np.array([liked.get(position, 0.0) > 0 for position in places])
        if not good.any() or good.all():
            continue
        judged.append(Judgments(good.astype(np.float64), good))
        shown_order.append(sorted(range(len(places)), key=lambda i: -served[places[i]]))
        own_order.append(sorted(range(len(places)), key=lambda i: -own[places[i]]))
        weights.append(
            float(np.mean([liked[position] for position, is_good in zip(places, good, strict=True) if is_good]))
        )
    if not judged:
        return None
    old, new = (
        SetResult(measure(judged, order), np.array(weights)).values("map") for order in (shown_order, own_order)
    )
    return ShadowResult(version, len(scores), len(judged), float(old.mean()), float(new.mean()), compare(new, old))


def _first_scored(store: EventStore, version: str) -> float:
    events, table = schema.events, schema.shadow_scores
    query = (
        select(func.min(events.c.time)).join(table, table.c.event_id == events.c.id).where(table.c.version == version)
    )
    with store.database.reading() as connection:
        return float(connection.execute(query).scalar() or 0.0)


def _scores(store: EventStore, version: str) -> dict[str, dict[int, float]]:
    table = schema.shadow_scores
    found: dict[str, dict[int, float]] = {}
    with store.database.reading() as connection:
        for row in connection.execute(select(table).where(table.c.version == version)):
            found.setdefault(row.event_id, {})[row.position] = row.score
    return found
