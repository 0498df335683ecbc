"""StoreLog: the learning store as the server's event log."""

from __future__ import annotations

from mnemorank.errors import MissingExtraError
from mnemorank.memory.memory import Memory
from mnemorank.server.event_log import RerankEvent

try:
    from mnemorank.learning.events import DEFAULT_TENANT, Event, Shown
    from mnemorank.learning.store.events import EventStore
except ImportError as error:
    raise MissingExtraError(f"--store needs `pip install 'mnemorank[learn]'` ({error})") from error


class StoreLog:
    """:param store: open, or the URL of its database; `store` is then open for feedback and learning."""

    def __init__(self, store: EventStore | str) -> None:
        self.store = EventStore(store) if isinstance(store, str) else store

    def record(self, event: RerankEvent) -> None:
        self.store.log(
            Event(
                query=event.query,
                shown=tuple(
                    Shown(
                        position=shown.position,
                        memory=shown.memory or Memory(shown.text, id=shown.memory_id),
                        memory_id=shown.memory_id,
                        relevance=shown.relevance,
                        raw_score=shown.raw_score,
                        propensity=shown.propensity,
                    )
                    for shown in event.shown
                ),
                model_version=event.model_version,
                id=event.id,
                time=event.time.timestamp(),
                tenant=event.tenant or DEFAULT_TENANT,
                user=event.user,
                query_time=event.query_time,
                abstained=event.abstained,
                test=event.test,
            )
        )

    def close(self) -> None:
        self.store.close()
