"""Deletion that also reaches mined examples, expiry by age, and export of a user's data."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    false,
    or_,
    select,
    true,
)

from mnemorank.errors import InputError
from mnemorank.learning.events import RerankEvent, scoped_name
from mnemorank.learning.store import schema
from mnemorank.learning.store.database import lock_deletions
from mnemorank.learning.store.events import DAY, EventStore
from mnemorank.learning.store.redaction import clean_text

logger = logging.getLogger(__name__)

_Sources = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a deletion removed.

    :param subject: keyed hash of the name that was deleted; the record itself must not contain the name.
    :param models: versions trained on deleted examples → number of those examples. Whether to retrain them or to roll
        them back is up to you.
    :param example_ids: examples to remove from the files of training runs.
    """

    scope: str
    subject: str
    events: int = 0
    signals: int = 0
    examples: int = 0
    models: dict[str, int] = field(default_factory=dict)
    example_ids: tuple[str, ...] = ()
    time: float = field(default_factory=time.time)

    @property
    def is_empty(self) -> bool:
        return not (self.events or self.signals or self.examples or self.models)


def delete_event(store: EventStore, event_id: str) -> Deletion:
    """Delete an event, its signals, and the examples made from it."""
    events = select(schema.events.c.id).where(schema.events.c.id == event_id)
    return _delete(store, "event", event_id, events, sources=[("event", event_id)])


def delete_user(store: EventStore, user: str, tenant: str) -> Deletion:
    """Delete a user's queries and signals, and the examples made from either."""
    events = select(schema.events.c.id).where(schema.events.c.tenant == tenant, schema.events.c.actor == user)
    signals = and_(
        schema.signals.c.actor == user,
        schema.signals.c.event_id.in_(select(schema.events.c.id).where(schema.events.c.tenant == tenant)),
    )
    name = scoped_name(tenant, user)
    return _delete(
        store, "user", name, events, sources=[("actor", name)], signals=signals, includes_examples_of_events=True
    )


def delete_tenant(store: EventStore, tenant: str) -> Deletion:
    """Delete everything of a tenant."""
    events = select(schema.events.c.id).where(schema.events.c.tenant == tenant)
    return _delete(store, "tenant", tenant, events, sources=[("tenant", tenant)])


def delete_memory(store: EventStore, memory_id: str, tenant: str) -> Deletion:
    """Delete a memory from all events, with the signals on it and the examples that contain it."""
    in_tenant = schema.shown.c.event_id.in_(select(schema.events.c.id).where(schema.events.c.tenant == tenant))
    shown = and_(schema.shown.c.memory_id == memory_id, in_tenant)
    name = scoped_name(tenant, memory_id)
    return _delete(store, "memory", name, None, sources=[("memory", name)], shown=shown, tenant=tenant)


def delete_expired(store: EventStore, now: float | None = None) -> Deletion:
    """Delete the events that are older than the retention period."""
    days = store.privacy.retention_days
    if days is None:
        return Deletion("age", "")
    before = (time.time() if now is None else now) - days * DAY
    events = select(schema.events.c.id).where(schema.events.c.time < before)
    with store.database.reading() as connection:
        if connection.execute(events.limit(1)).first() is None:
            return Deletion("age", "")
    return _delete(store, "age", f"{days:g} days", events, includes_examples_of_events=True)


def delete_by_scope(store: EventStore, scope: str, name: str, tenant: str) -> Deletion:
    """Delete an event, memory, user or tenant.

    :param scope: `event`, `memory`, `user` or `tenant`.
    :param tenant: the tenant of the memory or user.
    """
    name, tenant = clean_text(name), clean_text(tenant)
    match scope:
        case "event":
            return delete_event(store, name)
        case "memory":
            return delete_memory(store, name, tenant)
        case "user":
            return delete_user(store, name, tenant)
        case "tenant":
            return delete_tenant(store, name)
    raise InputError(f"expected event, memory, user or tenant, got {scope!r}", field="scope")


def list_deletions(store: EventStore) -> list[Deletion]:
    """Return all recorded deletions, oldest first."""
    with store.database.reading() as connection:
        rows = connection.execute(select(schema.deletions).order_by(schema.deletions.c.id)).all()
    return [
        Deletion(row.scope, row.subject, row.events, row.signals, row.examples, json.loads(row.models), time=row.time)
        for row in rows
    ]


def export_user(store: EventStore, user: str, tenant: str) -> Iterator[dict[str, Any]]:
    """Iterate over everything stored about a user: events, the user's own signals, and mined examples.

    What others said about the user's events is theirs.
    """
    user, tenant = clean_text(user), clean_text(tenant)
    for event, signals in store.events(tenant=tenant, test=None):
        own_signals = [asdict(signal) for signal in signals if signal.actor == user]
        if event.user == user:
            yield {"record": "event", **_stored_fields(event), "signals": own_signals}
        elif own_signals:
            yield {"record": "signals", "event_id": event.id, "signals": own_signals}
    table, sources = schema.examples, schema.example_sources
    example_ids = select(sources.c.example_id).where(
        sources.c.kind == "actor", sources.c.source == scoped_name(tenant, user)
    )
    with store.database.reading() as connection:
        rows = connection.execute(select(table).where(table.c.id.in_(example_ids)).order_by(table.c.id)).all()
    for row in rows:
        yield {"record": "example", **json.loads(row.record), "provenance": json.loads(row.provenance)}


def _stored_fields(event: RerankEvent) -> dict[str, Any]:
    """Return an event as JSON values, without the fields that the store does not keep."""
    shown = [
        {
            name: value
            for name, value in {**asdict(entry), "memory": entry.memory.to_dict() if entry.memory else None}.items()
            if name != "index"
        }
        for entry in event.shown
    ]
    fields = {name: value for name, value in asdict(event).items() if name not in ("degraded", "keep_texts")}
    return {**fields, "shown": shown}


def _delete(
    store: EventStore,
    scope: str,
    name: str,
    events: Select[Any] | None,
    *,
    sources: _Sources | None = None,
    signals: Any = None,
    shown: Any = None,
    tenant: str | None = None,
    includes_examples_of_events: bool = False,
) -> Deletion:
    """Delete in one transaction, and record what was deleted.

    :param events: selects the ids of the events to delete.
    :param sources: (kind, name) of the sources whose examples are deleted.
    :param signals: condition on further signals to delete.
    :param shown: condition on the shown memories to delete, with all examples that contain their texts.
    """
    selected: dict[str, Select[Any]] = {}
    if events is not None and includes_examples_of_events:
        selected["event"] = events
    if shown is not None:
        selected["text"] = select(schema.shown.c.text_hash).where(shown)
    with store.database.writing() as connection:
        lock_deletions(connection)
        examples = _example_ids(connection, sources or [], selected, tenant)
        trained = _trained_examples(connection, sources or [], selected, tenant)
        models = dict(sorted(Counter(version for version, _ in trained).items()))
        _delete_examples(connection, examples, trained)
        on_memory = _signals_on(shown) if shown is not None else None
        conditions = [condition for condition in (signals, on_memory) if condition is not None]
        if events is not None:
            conditions.append(schema.signals.c.event_id.in_(events))
        signal_count = connection.execute(delete(schema.signals).where(or_(*conditions))).rowcount
        event_count = 0
        if shown is not None:
            event_count = connection.execute(delete(schema.shown).where(shown)).rowcount
        if events is not None:
            for table in (schema.shown, schema.shadow_scores):
                connection.execute(delete(table).where(table.c.event_id.in_(events)))
            event_count = connection.execute(delete(schema.events).where(schema.events.c.id.in_(events))).rowcount
        subject = name if scope == "age" else store.text_hash(f"{scope}:{name}")
        in_files = {*examples, *(example_id for version, example_id in trained if version.startswith("run:"))}
        deletion = Deletion(scope, subject, event_count, signal_count, len(examples), models, tuple(sorted(in_files)))
        if not deletion.is_empty:
            row = asdict(deletion)
            del row["example_ids"]
            connection.execute(schema.deletions.insert().values({**row, "models": json.dumps(models)}))
    if not store.database.checkpoint() and not deletion.is_empty:
        logger.warning(
            "deleted texts remain in the write-ahead log while another process reads the store; "
            "the next deletion or mining, or closing the store, removes them"
        )
    return deletion


def _example_ids(
    connection: Connection, sources: _Sources, selected: Mapping[str, Select[Any]], tenant: str | None
) -> list[str]:
    table = schema.example_sources
    in_tenant = table.c.example_id.in_(select(schema.examples.c.id).where(schema.examples.c.tenant == tenant))
    query = (
        select(table.c.example_id)
        .distinct()
        .where(_has_source(table, sources, selected), in_tenant if tenant is not None else true())
    )
    return sorted(connection.execute(query).scalars())


def _trained_examples(
    connection: Connection, sources: _Sources, selected: Mapping[str, Select[Any]], tenant: str | None
) -> list[tuple[str, str]]:
    """(version, example id) of examples that models were trained on, even if mining has replaced them since."""
    table = schema.model_sources
    other = table.alias()
    in_tenant = exists().where(
        other.c.version == table.c.version,
        other.c.example_id == table.c.example_id,
        other.c.kind == "tenant",
        other.c.source == tenant,
    )
    query = (
        select(table.c.version, table.c.example_id)
        .distinct()
        .where(_has_source(table, sources, selected), in_tenant if tenant is not None else true())
    )
    return sorted((str(row[0]), str(row[1])) for row in connection.execute(query).all())


def _has_source(table: Table, sources: _Sources, selected: Mapping[str, Select[Any]]) -> ColumnElement[bool]:
    """Return the condition that a row has one of the sources.

    :param selected: kind → query for names; there may be too many names to list them in a statement.
    """
    conditions = [and_(table.c.kind == kind, table.c.source == source) for kind, source in sources]
    conditions += [and_(table.c.kind == kind, table.c.source.in_(names)) for kind, names in selected.items()]
    return or_(false(), *conditions)


def _delete_examples(connection: Connection, examples: list[str], trained: list[tuple[str, str]]) -> None:
    """Delete examples with their sources, and the sources of trained examples, so that each is reported only once."""
    if trained:
        table = schema.model_sources
        condition = and_(table.c.version == bindparam("model"), table.c.example_id == bindparam("example"))
        rows = [{"model": version, "example": example_id} for version, example_id in trained]
        connection.execute(delete(table).where(condition), rows)
    if examples:
        for column in (schema.example_sources.c.example_id, schema.examples.c.id):
            rows = [{"example": example_id} for example_id in examples]
            connection.execute(delete(column.table).where(column == bindparam("example")), rows)


def _signals_on(shown: Any) -> Any:
    matching = select(schema.shown.c.event_id).where(
        shown,
        schema.shown.c.event_id == schema.signals.c.event_id,
        schema.shown.c.rank == schema.signals.c.rank,
    )
    return matching.exists()
