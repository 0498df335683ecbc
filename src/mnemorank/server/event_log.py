"""The log that rerank routes write their events to: the event store, or any object with a `record` method."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from fastapi import Request

from mnemorank.errors import MissingExtraError
from mnemorank.learning.events import RerankEvent
from mnemorank.server.observability import log_failure

if TYPE_CHECKING:
    from mnemorank.learning.store.events import EventStore


logger = logging.getLogger(__name__)


class EventLog(Protocol):
    """Receives events. `app.state.event_log` holds one, or None."""

    def record(self, event: RerankEvent) -> object:
        """Store the event durably. Called in a worker thread, before the response is sent.

        It must return or raise within about a second, even if the storage does not respond.
        """
        ...


class StoreLog:
    """An event log that writes to the learning store.

    :param store: also used by the feedback routes and by learning.
    """

    def __init__(self, store: EventStore) -> None:
        self.store = store

    def record(self, event: RerankEvent) -> None:
        self.store.record(event)

    def close(self) -> None:
        self.store.close()


def record_event(request: Request, event: RerankEvent) -> bool:
    """Record an event; return whether it was stored. A log that fails does not fail the request."""
    log: EventLog | None = request.app.state.event_log
    if log is None:
        return False
    try:
        log.record(event)
    except Exception as error:
        log_failure(logger, "event lost", error, event_id=event.id)
        request.app.state.metrics.events_lost.inc()
        request.state.log_fields["event_lost"] = True
        return False
    return True


def open_store_log(url: str) -> StoreLog:
    """Open the event store at a path or database URL."""
    try:
        from mnemorank.learning.store.events import EventStore
    except ImportError as error:
        raise MissingExtraError(f"--store needs `pip install 'mnemorank[learn]'` ({error})") from error
    return StoreLog(EventStore(url))
