"""Shadow mode: a candidate scores live traffic without being shown, and its scores are kept with the event."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from sqlalchemy.exc import SQLAlchemyError

from mnemorank.errors import MnemorankError
from mnemorank.learning import schema
from mnemorank.learning.registry import Version
from mnemorank.learning.store import EventStore
from mnemorank.long_queries import score_by_the_end
from mnemorank.memory import Memory
from mnemorank.model import Model

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
        raw = score_by_the_end(self._model, query, shown)[0].raw
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
