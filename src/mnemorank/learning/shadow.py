"""Shadow mode: a candidate scores live traffic without being shown, and later feedback compares the two."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from mnemorank.errors import InputError, MnemorankError
from mnemorank.evaluation.measures import Judged, measure
from mnemorank.evaluation.significance import Comparison, compare
from mnemorank.learning import schema
from mnemorank.learning.evidence import is_chitchat, votes
from mnemorank.learning.propensity import Propensities
from mnemorank.learning.registry import Version
from mnemorank.learning.store import EventStore
from mnemorank.memory import Memory
from mnemorank.model import Model

logger = logging.getLogger(__name__)


class Shadow:
    """Scores what was shown with a candidate, in a thread that stands back: when it cannot keep up, events are skipped.

    :param waiting: events that may wait for it.
    """

    def __init__(self, store: EventStore, version: Version, *, waiting: int = 100) -> None:
        self.version = version.name
        self.skipped = 0
        self._store = store
        self._model = Model.load(version.path, probe=False)
        self._queue: queue.Queue[tuple[str, str, list[Memory]] | None] = queue.Queue(waiting)
        self._thread = threading.Thread(target=self._work, name="mnemorank-shadow", daemon=True)
        self._thread.start()

    def observe(self, event_id: str, query: str, shown: Sequence[Memory]) -> None:
        """Take an event that is already stored; returns at once."""
        try:
            self._queue.put_nowait((event_id, query, list(shown)))
        except queue.Full:
            self.skipped += 1

    def close(self) -> None:
        """Finish what waits, then give the model back."""
        self._queue.put(None)
        self._thread.join()
        self._model.close()

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._score(*item)
            except (MnemorankError, IntegrityError):
                logger.exception("the shadow model could not score an event")

    def _score(self, event_id: str, query: str, shown: Sequence[Memory]) -> None:
        raw = self._model.score(query, shown).raw
        rows = [
            {"event_id": event_id, "version": self.version, "position": position, "score": float(score)}
            for position, score in enumerate(raw)
            if np.isfinite(score)
        ]
        if rows:
            with self._store.database.writing() as connection:
                connection.execute(schema.shadow_scores.insert(), rows)


@dataclass(frozen=True, slots=True)
class ShadowResult:
    """:param comparison: of the candidate's MAP with that of what was shown, over events with feedback on both sides.
    :param events: how many there were.
    """

    version: str
    events: int
    shown: float
    candidate: float
    comparison: Comparison


def compare_shadow(store: EventStore, version: str, propensities: Propensities | None = None) -> ShadowResult:
    """Order what was shown by the candidate's scores, and see where the memories with good feedback stand."""
    propensities = propensities or Propensities()
    scores = _scores(store, version)
    judged, shown_order, own_order = [], [], []
    for event, signals in store.events():
        own = scores.get(event.id)
        if not own or event.query is None or is_chitchat(event.query):
            continue
        total: dict[int, float] = {}
        for vote in votes(event, signals, propensities):
            total[vote.shown.position] = total.get(vote.shown.position, 0.0) + vote.value * vote.weight
        # Only what was judged counts: what nobody looked at may be good or bad.
        places = [position for position in sorted(total) if position in own and total[position]]
        labels = np.array([float(total[position] > 0) for position in places])
        if not labels.any() or labels.all():
            continue
        judged.append(Judged(labels, labels > 0))
        shown_order.append(list(range(len(places))))
        own_order.append(sorted(range(len(places)), key=lambda i: -own[places[i]]))
    if not judged:
        raise InputError(f"version: no event that {version!r} shadowed has feedback yet")
    old, new = measure(judged, shown_order)["map"], measure(judged, own_order)["map"]
    return ShadowResult(version, len(judged), float(old.mean()), float(new.mean()), compare(new, old))


def _scores(store: EventStore, version: str) -> dict[str, dict[int, float]]:
    table = schema.shadow_scores
    found: dict[str, dict[int, float]] = {}
    with store.database.reading() as connection:
        for row in connection.execute(select(table).where(table.c.version == version)):
            found.setdefault(row.event_id, {})[row.position] = row.score
    return found
