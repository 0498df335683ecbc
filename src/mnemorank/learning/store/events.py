"""The event store: events and signals, redacted, in SQLite or PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from sqlalchemy import Connection, Row, Table, bindparam, case, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import OperationalError, SQLAlchemyError, TimeoutError

from mnemorank.errors import ConflictError, InputError, NotFoundError
from mnemorank.learning.events import RerankEvent, ShownMemory
from mnemorank.learning.settings import PrivacySettings
from mnemorank.learning.signals import Signal
from mnemorank.learning.store import schema
from mnemorank.learning.store.database import EVENT_TIMEOUT, Database
from mnemorank.learning.store.redaction import Redactor, clean_text
from mnemorank.memory.memory import Memory

DAY = 86400.0
_PAGE_SIZE = 500
_MAX_BATCH = 200
_STORE_ERRORS = (OperationalError, TimeoutError)  # locked, full or gone: no fault of the rows


@dataclass(slots=True, eq=False)
class _PendingWrite:
    """Rows of one call to `record_many`, written by whichever thread holds the lock."""

    events: list[tuple[Any, ...]]
    shown: list[tuple[Any, ...]]
    is_done: bool = False
    error: BaseException | None = None


class EventStore:
    """Stores events and signals. Safe for many threads and processes.

    :param url: a path or `sqlite:///PATH`, or `postgresql://…`.
    :param privacy: what may be stored.
    :param timeout_seconds: how long `record` waits for a database that is locked or does not respond. A response to a
        user waits for `record`, so this is short. Everything else waits up to 30 seconds for a lock.
    """

    def __init__(
        self,
        url: str | Path,
        privacy: PrivacySettings | None = None,
        *,
        timeout_seconds: float = EVENT_TIMEOUT,
    ) -> None:
        if not timeout_seconds > 0:
            raise InputError(f"expected a number above 0, got {timeout_seconds!r}", field="timeout_seconds")
        self.privacy = privacy or PrivacySettings()
        self._timeout = timeout_seconds
        self._redactor = Redactor(self.privacy)
        self.database = Database(url, event_timeout=timeout_seconds)
        # SQLite's own timeout is reliable. A PostgreSQL server that is frozen, or behind a dead network, would hold
        # the calling thread without end, so another thread talks to it.
        self._writer = None if self.database.is_sqlite else _WriterThread()
        self._pending: deque[_PendingWrite] = deque()
        self._pending_lock = threading.Lock()

    def __enter__(self) -> EventStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.stop()
        self.database.close()

    def text_hash(self, text: str) -> str:
        """Return the keyed hash that represents a text that may not be stored."""
        return hashlib.blake2b(text.encode("utf-8", "replace"), key=self.database.salt, digest_size=16).hexdigest()

    def record(self, event: RerankEvent) -> str:
        """Store an event and return its id. Once this returns, no kill of the process loses the event.

        Raise an `SQLAlchemyError` if that takes longer than `timeout_seconds`; the event may still be stored later.
        """
        self.record_many([event])
        return event.id

    def record_many(self, events: Sequence[RerankEvent]) -> None:
        """Store events in one transaction, together with those of other waiting threads."""
        deadline = time.monotonic() + self._timeout
        write = _PendingWrite([self._event_row(event) for event in events], [])
        for event in events:
            for shown in event.shown:
                write.shown.append(self._shown_row(event, shown))
                if time.monotonic() >= deadline:
                    message = f"the texts could not be redacted within {self._timeout:g} seconds"
                    raise TimeoutError(f"{message}; {len(event.shown)} memories are too many or too long")
        self._pending.append(write)
        if not self._pending_lock.acquire(timeout=max(deadline - time.monotonic(), 0.0)):
            with suppress(ValueError):  # another thread has just taken it up
                self._pending.remove(write)
            raise TimeoutError(f"the store did not respond within {self._timeout:g} seconds")
        try:
            while not write.is_done:
                self._flush_pending(deadline)
        finally:
            self._pending_lock.release()
        if write.error is not None:
            raise write.error

    def _flush_pending(self, deadline: float) -> None:
        """Write the pending rows. If one write may be at fault, write each on its own, so that only that one fails.

        A store that is locked, full or gone fails all of them: each further attempt would take as long again.
        """
        batch = [self._pending.popleft() for _ in range(min(len(self._pending), _MAX_BATCH))]
        try:
            self._insert(batch, deadline)
        except BaseException as error:
            if isinstance(error, SQLAlchemyError) and not isinstance(error, _STORE_ERRORS):
                self._insert_separately(batch, deadline)
                return
            for write in batch:
                write.error = error
            if not isinstance(error, SQLAlchemyError):
                raise
        finally:
            for write in batch:
                write.is_done = True

    def _insert_separately(self, batch: Sequence[_PendingWrite], deadline: float) -> None:
        store_error: SQLAlchemyError | None = None
        for write in batch:
            if store_error is not None:
                write.error = store_error
                continue
            try:
                self._insert([write], deadline)
            except SQLAlchemyError as error:
                write.error = error
                store_error = error if isinstance(error, _STORE_ERRORS) else None

    def _insert(self, batch: Sequence[_PendingWrite], deadline: float) -> None:
        if self._writer is None:
            self._insert_rows(batch, deadline)
        else:
            self._writer.run(lambda: self._insert_rows(batch, deadline), deadline)

    def _insert_rows(self, batch: Sequence[_PendingWrite], deadline: float) -> None:
        events = [row for write in batch for row in write.events]
        shown = [row for write in batch for row in write.shown]
        with self.database.writing_events(max(deadline - time.monotonic(), 0.0)) as connection:
            # Plain SQL: SQLAlchemy's handling of parameters would take as long as the database.
            if events:
                connection.exec_driver_sql(_insert_sql(schema.events, connection.dialect.name), events)
            if shown:
                connection.exec_driver_sql(_insert_sql(schema.shown, connection.dialect.name), shown)

    def add_signals(self, signals: Iterable[Signal], *, max_users: int | None = None) -> int:
        """Store signals, all or none; return how many were new.

        A repeated signal is counted on the stored one, which takes the later time, stars and note.

        :param max_users: how many users may give feedback on an event through one caller. The user who asked is one
            of them, so with 1 nobody else may.
        """
        signals = list(signals)
        with self.database.writing() as connection:
            if max_users is not None:
                actors: dict[tuple[str, str], set[str]] = defaultdict(set)
                for signal in signals:
                    actors[clean_text(signal.event_id), signal.caller].add(signal.actor)
                for (event_id, caller), names in sorted(actors.items()):
                    self._check_users(connection, event_id, caller, names, max_users)
            return sum(self._add_signal(connection, signal) for signal in signals)

    def _check_users(
        self, connection: Connection, event_id: str, caller: str, actors: Collection[str], max_users: int
    ) -> None:
        events, signals = schema.events, schema.signals
        # Locked, so that two requests at the same time do not both find a place.
        event = connection.execute(select(events.c.actor).where(events.c.id == event_id).with_for_update()).first()
        asker = event.actor if event is not None else None
        recorded = select(signals.c.actor).distinct().where(signals.c.event_id == event_id, signals.c.caller == caller)
        known = {*connection.execute(recorded).scalars(), *({asker} if asker else ())}
        new = {clean_text(actor or asker or "") for actor in actors} - known
        if new and len(known | new) > max_users:
            others = "only the user who asked may" if max_users == 1 and asker else f"at most {max_users} may"
            message = f"too many users give feedback on this event; {others}"
            raise ConflictError(message, field="user", code="too_many_users")

    def _add_signal(self, connection: Connection, signal: Signal) -> int:
        event_id = clean_text(signal.event_id)
        target = connection.execute(_SIGNAL_TARGET, {"event_id": event_id, "rank": signal.rank}).first()
        if target is None:
            raise NotFoundError(f"no event {signal.event_id!r}", field="event_id", code="unknown_event")
        if signal.rank is not None and target.rank is None:
            raise InputError(f"event {signal.event_id!r} shows no memory at rank {signal.rank}", field="rank")
        row = {
            "event_id": event_id,
            "rank": schema.WHOLE_EVENT if signal.rank is None else signal.rank,
            "actor": clean_text(signal.actor or target.actor or ""),
            "caller": signal.caller,
            "kind": signal.kind,
            "late": signal.time > target.time + self.privacy.late_after_days * DAY,
            "value": signal.value,
            "note": self._redactor.redact_optional(signal.note),
            # Clocks differ, but feedback on an event cannot come before it.
            "time": max(signal.time, target.time),
            "repeats": 0,
        }
        return int(connection.execute(_UPSERT_SIGNAL[connection.dialect.name], row).scalar_one() == 0)

    def rank_of(self, event_id: str, memory_id: str, rank: int | None = None) -> int:
        """Return the rank at which an event shows a memory.

        :param rank: selects one of several memories with the same id.
        """
        table = schema.shown
        query = select(table.c.rank).where(
            table.c.event_id == clean_text(event_id), table.c.memory_id == clean_text(memory_id)
        )
        with self.database.reading() as connection:
            ranks = sorted(int(row) for row in connection.execute(query).scalars())
        if not ranks:
            raise InputError(f"event {event_id!r} does not show memory {memory_id!r}", field="memory_id")
        if rank is not None and rank in ranks:
            return rank
        if len(ranks) > 1:
            listed = ", ".join(map(str, ranks))
            message = f"event {event_id!r} shows memory {memory_id!r} at the ranks {listed}"
            raise InputError(f"{message}; also give the rank", field="memory_id", code="ambiguous")
        return ranks[0]

    def event(self, event_id: str) -> tuple[RerankEvent, list[Signal]] | None:
        """Return an event with its signals, or None."""
        with self.database.reading() as connection:
            rows = connection.execute(select(schema.events).where(schema.events.c.id == clean_text(event_id))).all()
            return next(iter(_load_events(connection, rows)), None)

    def events(
        self, *, since: float = 0.0, tenant: str | None = None, test: bool | None = False
    ) -> Iterator[tuple[RerankEvent, list[Signal]]]:
        """Iterate over events with their signals, oldest first.

        :param test: False excludes test traffic, True selects only that, None includes both.
        """
        after: tuple[float, str] = (since, "")
        while True:
            table = schema.events
            query = select(table).order_by(table.c.time, table.c.id).limit(_PAGE_SIZE)
            query = query.where((table.c.time > after[0]) | ((table.c.time == after[0]) & (table.c.id > after[1])))
            if tenant is not None:
                query = query.where(table.c.tenant == tenant)
            if test is not None:
                query = query.where(table.c.test == test)
            with self.database.reading() as connection:
                rows = connection.execute(query).all()
                page = list(_load_events(connection, rows))
            if not rows:
                return
            yield from page
            after = rows[-1].time, rows[-1].id

    def counts(self) -> dict[str, int]:
        """Return the number of events (without test traffic), test events and signals."""
        with self.database.reading() as connection:
            rows = connection.execute(select(schema.events.c.test, func.count()).group_by(schema.events.c.test)).all()
            by_test = {bool(row[0]): int(row[1]) for row in rows}
            signals = connection.execute(select(func.count()).select_from(schema.signals)).scalar_one()
        return {"events": by_test.get(False, 0), "test_events": by_test.get(True, 0), "signals": int(signals)}

    def _event_row(self, event: RerankEvent) -> tuple[Any, ...]:
        """The values in the order of the table's columns."""
        keeps_query = self.privacy.queries and event.keep_texts
        return (
            event.id,
            event.time,
            clean_text(event.tenant),
            clean_text(event.user) if event.user else None,
            self._redactor.redact_optional(event.query) if keeps_query else None,
            event.query_time,
            event.model_version,
            event.abstained,
            event.test or event.tenant in self.privacy.test_tenants,
        )

    def _shown_row(self, event: RerankEvent, shown: ShownMemory) -> tuple[Any, ...]:
        """The values in the order of the table's columns."""
        memory = shown.memory
        memory_id = shown.memory_id or (memory.id if memory else None)
        keeps_memory = self.privacy.texts and event.keep_texts
        return (
            event.id,
            shown.rank,
            clean_text(memory_id) if memory_id else None,
            self.text_hash(memory.text) if memory else shown.text_hash,
            shown.relevance,
            shown.raw_score,
            shown.propensity,
            _memory_json(self._redactor.redact_memory(memory)) if keeps_memory and memory else None,
        )


class _WriterThread:
    """Runs one function at a time for callers who do not wait beyond a deadline."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], None], Future[None]] | None] = SimpleQueue()
        # A daemon, so that a database that never responds does not keep the process from exiting.
        threading.Thread(target=self._work, name="mnemorank-event-writer", daemon=True).start()

    def run(self, function: Callable[[], None], deadline: float) -> None:
        future: Future[None] = Future()
        self._queue.put((function, future))
        try:
            future.result(max(deadline - time.monotonic(), 0.0))
        except FutureTimeoutError:
            if future.done():  # just now
                return future.result()
            future.cancel()  # it does not run later, unless it is running already
            raise TimeoutError("the store did not respond in time") from None

    def stop(self) -> None:
        self._queue.put(None)

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            function, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)


@cache
def _insert_sql(table: Table, dialect: str) -> str:
    columns = [column.name for column in table.columns]
    mark = "?" if dialect == "sqlite" else "%s"
    return f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})"


def _upsert_signal(dialect: Any) -> Any:
    """Insert a signal, or count a repetition and keep time, stars and note of the later one."""
    table = schema.signals
    insert = dialect.insert(table)
    is_later = insert.excluded.time >= table.c.time
    later = {name: case((is_later, insert.excluded[name]), else_=table.c[name]) for name in ("value", "note", "time")}
    return insert.on_conflict_do_update(
        index_elements=["event_id", "rank", "actor", "caller", "kind", "late"],
        set_={**later, "repeats": table.c.repeats + 1},
    ).returning(table.c.repeats)


# Built once: building a statement takes longer than running it.
_UPSERT_SIGNAL = {"sqlite": _upsert_signal(sqlite), "postgresql": _upsert_signal(postgresql)}
_SIGNAL_TARGET = (
    select(schema.events.c.time, schema.events.c.actor, schema.shown.c.rank)
    .select_from(
        schema.events.outerjoin(
            schema.shown,
            (schema.shown.c.event_id == schema.events.c.id)
            & (schema.shown.c.rank == bindparam("rank", type_=schema.shown.c.rank.type)),
        )
    )
    .where(schema.events.c.id == bindparam("event_id"))
)


def _load_events(connection: Connection, rows: Sequence[Row[Any]]) -> Iterator[tuple[RerankEvent, list[Signal]]]:
    """Add the shown memories and signals to rows of the `events` table."""
    ids = [row.id for row in rows]
    shown: dict[str, list[ShownMemory]] = defaultdict(list)
    query = select(schema.shown).where(schema.shown.c.event_id.in_(ids)).order_by(schema.shown.c.rank)
    for row in connection.execute(query):
        shown[row.event_id].append(_shown_memory(row))
    signals: dict[str, list[Signal]] = defaultdict(list)
    query = select(schema.signals).where(schema.signals.c.event_id.in_(ids)).order_by(schema.signals.c.id)
    for row in connection.execute(query):
        signals[row.event_id].append(_signal(row))
    for row in rows:
        yield _event(row, shown[row.id]), signals[row.id]


def _memory_json(memory: Memory) -> str:
    return json.dumps(memory.to_dict(), ensure_ascii=False)


def _shown_memory(row: Row[Any]) -> ShownMemory:
    memory = Memory.of(json.loads(row.memory), on_error="skip") if row.memory else None
    return ShownMemory(row.rank, memory, row.memory_id, row.text_hash, row.relevance, row.raw_score, row.propensity)


def _signal(row: Row[Any]) -> Signal:
    rank = None if row.rank == schema.WHOLE_EVENT else row.rank
    return Signal(row.event_id, row.kind, rank, row.value, row.note, row.actor, row.time, bool(row.late), row.caller)


def _event(row: Row[Any], shown: list[ShownMemory]) -> RerankEvent:
    return RerankEvent(
        query=row.query,
        shown=tuple(shown),
        model_version=row.model_version,
        id=row.id,
        time=row.time,
        tenant=row.tenant,
        user=row.actor,
        query_time=row.query_time,
        abstained=bool(row.abstained),
        test=bool(row.test),
    )
