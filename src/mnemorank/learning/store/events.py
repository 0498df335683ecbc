"""EventStore: events and signals, redacted, in SQLite or PostgreSQL."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, Table, bindparam, case, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import OperationalError, SQLAlchemyError, TimeoutError

from mnemorank.errors import InputError
from mnemorank.learning.events import RerankEvent, ShownMemory
from mnemorank.learning.signals import WHOLE_EVENT, Signal
from mnemorank.learning.store import schema
from mnemorank.learning.store.database import EVENT_PATIENCE, Database, address
from mnemorank.learning.store.redaction import Policy, Redactor, storable
from mnemorank.memory.memory import Memory

DAY = 86400.0
_CHUNK = 500
_BATCH = 200
_OF_THE_STORE = (OperationalError, TimeoutError)


@dataclass(slots=True)
class _Waiting:
    """Rows of one call to `record_many`, written by whichever thread has the turn."""

    events: list[tuple[Any, ...]]
    shown: list[tuple[Any, ...]]
    done: bool = False
    error: BaseException | None = None


class EventStore:
    """Where events and signals are kept. Safe for many threads and processes.

    :param url: a path or `sqlite:///PATH`, or `postgresql://…`.
    :param policy: what may be stored.
    """

    def __init__(self, url: str | Path, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._redactor = Redactor(self.policy)
        self.database = Database(url)
        self._waiting: deque[_Waiting] = deque()
        self._turn = threading.Lock()

    def __enter__(self) -> EventStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.database.close()

    def text_hash(self, text: str) -> str:
        """What stands for a text where the text itself may not be stored."""
        return hashlib.blake2b(text.encode("utf-8", "replace"), key=self.database.salt, digest_size=16).hexdigest()

    def record(self, event: RerankEvent) -> str:
        """Store an event; once this returns, no kill of the process loses it. Returns the event's id."""
        self.record_many([event])
        return event.id

    def record_many(self, events: Sequence[RerankEvent]) -> None:
        """Store several events in one transaction, which may also take those of other threads that wait."""
        ours = _Waiting(
            [self._event_row(event) for event in events],
            [self._shown_row(event, shown) for event in events for shown in event.shown],
        )
        self._waiting.append(ours)
        with self._turn:
            while not ours.done:
                self._write_waiting()
        if ours.error is not None:
            raise ours.error

    def _write_waiting(self) -> None:
        """Write what has gathered. Where one of them may be to blame, each on its own, so that it fails nobody else's.

        A store that is locked, full or gone fails all of them: to ask it again for each would take as long each time.
        """
        batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), _BATCH))]
        try:
            self._insert(batch)
        except BaseException as error:
            if isinstance(error, SQLAlchemyError) and not isinstance(error, _OF_THE_STORE):
                self._insert_each(batch)
                return
            for one in batch:
                one.error = error
            if not isinstance(error, SQLAlchemyError):
                raise
        finally:
            for one in batch:
                one.done = True

    def _insert_each(self, batch: Sequence[_Waiting]) -> None:
        lost: Exception | None = None
        for one in batch:
            one.error = lost or self._insert_alone(one)
            if isinstance(one.error, _OF_THE_STORE):
                lost = one.error

    def _insert_alone(self, one: _Waiting) -> Exception | None:
        try:
            self._insert([one])
        except SQLAlchemyError as error:
            return error
        return None

    def _insert(self, batch: Sequence[_Waiting]) -> None:
        events = [row for one in batch for row in one.events]
        shown = [row for one in batch for row in one.shown]
        with self.database.writing(EVENT_PATIENCE) as connection:
            # Plain SQL: SQLAlchemy's handling of parameters would take as long as the database.
            if events:
                connection.exec_driver_sql(_insert_sql(schema.events, connection.dialect.name), events)
            if shown:
                connection.exec_driver_sql(_insert_sql(schema.shown, connection.dialect.name), shown)

    def signal(self, signals: Iterable[Signal]) -> int:
        """Store signals on stored events, all or none; returns how many were new.

        A repeated signal is counted on the stored one, whose time, stars and note become the later ones.
        """
        given = list(signals)
        new = 0
        with self.database.writing() as connection:
            for signal in given:
                new += self._add_signal(connection, signal)
        return new

    def _add_signal(self, connection: Connection, signal: Signal) -> int:
        event_id = storable(signal.event_id)
        told = connection.execute(_TOLD, {"event": event_id, "place": signal.position}).first()
        if told is None:
            raise InputError(f"no event {signal.event_id!r}; it may have been deleted", field="event_id")
        if signal.position != WHOLE_EVENT and told.position is None:
            raise InputError(f"the event {signal.event_id!r} showed no memory at {signal.position}", field="position")
        row = {
            "event_id": event_id,
            "position": signal.position,
            "actor": storable(signal.actor or told.actor or ""),
            "kind": signal.kind,
            "late": signal.time > told.time + self.policy.late_after_days * DAY,
            "value": signal.value,
            "note": self._redactor.maybe(signal.note),
            # Clocks differ: what is said about an event was said after it.
            "time": max(signal.time, told.time),
            "repeats": 0,
        }
        return int(connection.execute(_UPSERTS[connection.dialect.name], row).scalar_one() == 0)

    def position_of(self, event_id: str, memory_id: str, rank: int | None = None) -> int:
        """Where an event showed a memory, for signals that name the memory by its id.

        :param rank: which one is meant, where the event showed several of that id.
        """
        with self.database.reading() as connection:
            found = connection.execute(
                select(schema.shown.c.position).where(
                    schema.shown.c.event_id == storable(event_id), schema.shown.c.memory_id == storable(memory_id)
                )
            ).scalars()
            positions = sorted(found)
        if not positions:
            raise InputError(f"the event {event_id!r} did not show the memory {memory_id!r}", field="memory_id")
        if rank is not None and rank in positions:
            return rank
        if len(positions) > 1:
            ranks = ", ".join(map(str, positions))
            message = f"the event {event_id!r} showed the memory {memory_id!r} more than once, at the ranks {ranks}"
            raise InputError(f"{message}; give its rank as well", field="memory_id")
        return int(positions[0])

    def event(self, event_id: str) -> tuple[RerankEvent, list[Signal]] | None:
        """One event with its signals."""
        with self.database.reading() as connection:
            rows = connection.execute(select(schema.events).where(schema.events.c.id == storable(event_id))).all()
            return next(iter(self._gather(connection, rows)), None)

    def events(
        self, *, since: float = 0.0, tenant: str | None = None, test: bool | None = False
    ) -> Iterator[tuple[RerankEvent, list[Signal]]]:
        """Events with their signals, oldest first.

        :param test: False leaves test traffic out, True gives it alone, None gives all.
        """
        after: tuple[float, str] = (since, "")
        while True:
            table = schema.events
            query = select(table).order_by(table.c.time, table.c.id).limit(_CHUNK)
            query = query.where((table.c.time > after[0]) | ((table.c.time == after[0]) & (table.c.id > after[1])))
            if tenant is not None:
                query = query.where(table.c.tenant == tenant)
            if test is not None:
                query = query.where(table.c.test == test)
            with self.database.reading() as connection:
                rows = connection.execute(query).all()
                gathered = list(self._gather(connection, rows))
            if not rows:
                return
            yield from gathered
            after = rows[-1].time, rows[-1].id

    def counts(self) -> dict[str, int]:
        """How many events (without test traffic), test events and signals there are."""
        with self.database.reading() as connection:
            total = connection.execute(select(schema.events.c.test, func.count()).group_by(schema.events.c.test)).all()
            by_test = {bool(row[0]): int(row[1]) for row in total}
            signals = connection.execute(select(func.count()).select_from(schema.signals)).scalar_one()
        return {"events": by_test.get(False, 0), "test_events": by_test.get(True, 0), "signals": int(signals)}

    def _event_row(self, event: RerankEvent) -> tuple[Any, ...]:
        """In the order of the table's columns."""
        return (
            event.id,
            event.time,
            storable(event.tenant),
            storable(event.user) if event.user else None,
            self._redactor.maybe(event.query) if self.policy.queries and event.keep_texts else None,
            event.query_time,
            event.model_version,
            event.abstained,
            event.test or event.tenant in self.policy.test_tenants,
        )

    def _shown_row(self, event: RerankEvent, shown: ShownMemory) -> tuple[Any, ...]:
        """In the order of the table's columns."""
        memory = shown.memory
        name = shown.memory_id or (memory.id if memory else None)
        keeps = self.policy.texts and event.keep_texts and memory is not None
        return (
            event.id,
            shown.position,
            storable(name) if name else None,
            self.text_hash(memory.text) if memory else shown.text_hash,
            shown.relevance,
            shown.raw_score,
            shown.propensity,
            _written(self._redactor.memory(memory)) if keeps and memory else None,
        )

    def _gather(self, connection: Connection, rows: Sequence[Row[Any]]) -> Iterator[tuple[RerankEvent, list[Signal]]]:
        ids = [row.id for row in rows]
        shown = defaultdict(list)
        for row in connection.execute(
            select(schema.shown).where(schema.shown.c.event_id.in_(ids)).order_by(schema.shown.c.position)
        ):
            shown[row.event_id].append(_shown(row))
        signals = defaultdict(list)
        for row in connection.execute(
            select(schema.signals).where(schema.signals.c.event_id.in_(ids)).order_by(schema.signals.c.id)
        ):
            signals[row.event_id].append(_signal(row))
        for row in rows:
            yield _event(row, shown[row.id]), signals[row.id]


@cache
def _insert_sql(table: Table, dialect: str) -> str:
    columns = [column.name for column in table.columns]
    mark = "?" if dialect == "sqlite" else "%s"
    return f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({', '.join([mark] * len(columns))})"


def _upsert(dialect: Any) -> Any:
    """A new signal, or a repetition: counted, and the later of the two tells time, stars and note."""
    table = schema.signals
    insert = dialect.insert(table)
    is_later = insert.excluded.time >= table.c.time
    later = {name: case((is_later, insert.excluded[name]), else_=table.c[name]) for name in ("value", "note", "time")}
    return insert.on_conflict_do_update(
        index_elements=["event_id", "position", "actor", "kind", "late"],
        set_={**later, "repeats": table.c.repeats + 1},
    ).returning(table.c.repeats)


# Made once: to build a statement takes longer than to run it.
_UPSERTS = {"sqlite": _upsert(sqlite), "postgresql": _upsert(postgresql)}
_TOLD = (
    select(schema.events.c.time, schema.events.c.actor, schema.shown.c.position)
    .select_from(
        schema.events.outerjoin(
            schema.shown,
            (schema.shown.c.event_id == schema.events.c.id) & (schema.shown.c.position == bindparam("place")),
        )
    )
    .where(schema.events.c.id == bindparam("event"))
)


def _written(memory: Memory) -> str:
    return json.dumps(memory.to_dict(), ensure_ascii=False)


def _shown(row: Row[Any]) -> ShownMemory:
    memory = Memory.of(json.loads(row.memory), on_error="skip") if row.memory else None
    return ShownMemory(row.position, memory, row.memory_id, row.text_hash, row.relevance, row.raw_score, row.propensity)


def _signal(row: Row[Any]) -> Signal:
    return Signal(row.event_id, row.kind, row.position, row.value, row.note, row.actor, row.time, bool(row.late))


def _event(row: Row[Any], shown: list[ShownMemory]) -> RerankEvent:
    return replace(
        RerankEvent(
            row.query, tuple(shown), row.model_version, row.id, row.time, row.tenant, row.actor, row.query_time
        ),
        abstained=bool(row.abstained),
        test=bool(row.test),
    )


@dataclass(frozen=True, slots=True)
class StoreNote:
    """:param own: the store that the settings name."""

    path: Path
    own: str

    def check(self, given: str | None) -> None:
        """Refuse to open the settings' own store by default where the events are in another."""
        if given is not None or not self.path.exists():
            return
        told = self.path.read_text(encoding="utf-8").strip()
        if told != address(self.own):
            raise InputError(
                f"the events of this loop are in {told}; name it with --store or MNEMORANK_STORE. "
                f"To begin anew with {address(self.own)}, remove {self.path}",
                field="store",
            )

    def write(self, used: str) -> None:
        """Without password: the note tells where, not how to get in."""
        told = address(used)
        if told == address(self.own):
            self.path.unlink(missing_ok=True)
        elif not self.path.exists() or self.path.read_text(encoding="utf-8").strip() != told:
            self.path.write_text(told + "\n", encoding="utf-8")
