"""The log that the native route writes its events to: the event store, or any object with a `record` method."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mnemorank.errors import MissingExtraError
from mnemorank.learning.events import RerankEvent

if TYPE_CHECKING:
    from mnemorank.learning.store.events import EventStore


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


def open_store_log(url: str) -> StoreLog:
    """Open the event store at a path or database URL."""
    try:
        from mnemorank.learning.store.events import EventStore
    except ImportError as error:
        raise MissingExtraError(f"--store needs `pip install 'mnemorank[learn]'` ({error})") from error
    return StoreLog(EventStore(url))
