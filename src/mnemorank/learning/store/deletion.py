"""Deletion that reaches what was made of the data, retention by age, and export of all data of a user."""

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
from mnemorank.learning.events import scoped_name
from mnemorank.learning.store import schema
from mnemorank.learning.store.database import take_turns
from mnemorank.learning.store.events import DAY, EventStore
from mnemorank.learning.store.redaction import storable

logger = logging.getLogger(__name__)

SCOPES = ("event", "memory", "user", "tenant", "age")


@dataclass(frozen=True, slots=True)
class Deletion:
    """What a deletion removed.

    :param subject: the store's keyed hash of what was named, so that the record itself tells nothing.
    :param models: versions trained on what was removed → on how many such examples; to be retrained or rolled back by
        your own rules.
    :param example_ids: to be taken out of the files of runs.
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
    def found_anything(self) -> bool:
        return bool(self.events or self.signals or self.examples or self.models)


def delete_event(store: EventStore, event_id: str) -> Deletion:
    """Forget one event, its signals, and the examples made of it."""
    chosen = select(schema.events.c.id).where(schema.events.c.id == event_id)
    return _delete(store, "event", event_id, chosen, sources=[("event", event_id)])


def delete_user(store: EventStore, user: str, tenant: str) -> Deletion:
    """Forget what a user asked and every signal they gave, and the examples made of either."""
    chosen = select(schema.events.c.id).where(schema.events.c.tenant == tenant, schema.events.c.actor == user)
    theirs = and_(
        schema.signals.c.actor == user,
        schema.signals.c.event_id.in_(select(schema.events.c.id).where(schema.events.c.tenant == tenant)),
    )
    sources = [("actor", scoped_name(tenant, user))]
    return _delete(store, "user", scoped_name(tenant, user), chosen, sources=sources, signals=theirs, from_events=True)


def delete_tenant(store: EventStore, tenant: str) -> Deletion:
    """Forget everything of a tenant."""
    chosen = select(schema.events.c.id).where(schema.events.c.tenant == tenant)
    return _delete(store, "tenant", tenant, chosen, sources=[("tenant", tenant)])


def delete_memory(store: EventStore, memory_id: str, tenant: str) -> Deletion:
    """Forget that a memory was ever shown, the signals on it, and the examples that hold it."""
    in_tenant = schema.shown.c.event_id.in_(select(schema.events.c.id).where(schema.events.c.tenant == tenant))
    chosen = and_(schema.shown.c.memory_id == memory_id, in_tenant)
    sources = [("memory", scoped_name(tenant, memory_id))]
    return _delete(store, "memory", scoped_name(tenant, memory_id), None, sources=sources, shown=chosen, tenant=tenant)


def expire(store: EventStore, now: float | None = None) -> Deletion:
    """Delete the events that are older than the policy's retention."""
    days = store.policy.retention_days
    if days is None:
        return Deletion("age", "")
    before = (time.time() if now is None else now) - days * DAY
    chosen = select(schema.events.c.id).where(schema.events.c.time < before)
    with store.database.reading() as connection:
        if connection.execute(chosen.limit(1)).first() is None:
            return Deletion("age", "")
    return _delete(store, "age", f"{days:g} days", chosen, from_events=True)


def delete_by_scope(store: EventStore, scope: str, name: str, tenant: str) -> Deletion:
    """:param scope: `event`, `memory`, `user` or `tenant`; the tenant itself is then the name."""
    name, tenant = storable(name), storable(tenant)
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


def deletions(store: EventStore) -> list[Deletion]:
    """All deletions on record, oldest first."""
    with store.database.reading() as connection:
        rows = connection.execute(select(schema.deletions).order_by(schema.deletions.c.id)).all()
    return [
        Deletion(r.scope, r.subject, r.events, r.signals, r.examples, json.loads(r.models), (), r.time) for r in rows
    ]


def export_user(store: EventStore, user: str, tenant: str) -> Iterator[dict[str, Any]]:
    """All that is stored of a user: their events, signals on others' events, and examples made of either."""
    user, tenant = storable(user), storable(tenant)
    for event, signals in store.events(tenant=tenant, test=None):
        given = [asdict(signal) for signal in signals if signal.actor == user]
        if event.user == user:
            shown = [
                {**asdict(entry), "memory": entry.memory.to_dict() if entry.memory else None} for entry in event.shown
            ]
            yield {"record": "event", **asdict(event), "shown": shown, "signals": [asdict(s) for s in signals]}
        elif given:
            yield {"record": "signals", "event_id": event.id, "signals": given}
    table, sources = schema.examples, schema.example_sources
    theirs = select(sources.c.example_id).where(
        sources.c.kind == "actor", sources.c.source == scoped_name(tenant, user)
    )
    with store.database.reading() as connection:
        rows = connection.execute(select(table).where(table.c.id.in_(theirs)).order_by(table.c.id)).all()
    for row in rows:
        yield {"record": "example", **json.loads(row.record), "provenance": json.loads(row.provenance)}


def _delete(
    store: EventStore,
    scope: str,
    name: str,
    events: Select[Any] | None,
    *,
    sources: list[tuple[str, str]] | None = None,
    signals: Any = None,
    shown: Any = None,
    tenant: str | None = None,
    from_events: bool = False,
) -> Deletion:
    """:param events: selects the ids of the events to delete.
    :param from_events: find examples by their events beside the named sources.
    :param shown: what to delete of what was shown; examples are found by its texts too.
    """
    found_by: dict[str, Select[Any]] = {}
    if events is not None and from_events:
        found_by["event"] = events
    if shown is not None:
        found_by["text"] = select(schema.shown.c.text_hash).where(shown)
    with store.database.writing() as connection:
        take_turns(connection)
        examples = _examples(connection, sources or [], found_by, tenant)
        trained = _trained(connection, sources or [], found_by, tenant)
        models = dict(sorted(Counter(version for version, _ in trained).items()))
        _delete_examples(connection, examples, trained)
        on_memory = _signals_on(shown) if shown is not None else None
        conditions = [c for c in (signals, on_memory) if c is not None]
        if events is not None:
            conditions.append(schema.signals.c.event_id.in_(events))
        removed = connection.execute(delete(schema.signals).where(or_(*conditions))).rowcount
        count = 0
        if shown is not None:
            count = connection.execute(delete(schema.shown).where(shown)).rowcount
        if events is not None:
            for table in (schema.shown, schema.shadow_scores):
                connection.execute(delete(table).where(table.c.event_id.in_(events)))
            count = connection.execute(delete(schema.events).where(schema.events.c.id.in_(events))).rowcount
        subject = name if scope == "age" else store.text_hash(f"{scope}:{name}")
        in_files = {*examples, *(name for version, name in trained if version.startswith("run:"))}
        done = Deletion(scope, subject, count, removed, len(examples), models, tuple(sorted(in_files)))
        if done.found_anything:
            row = asdict(done)
            del row["example_ids"]
            connection.execute(schema.deletions.insert().values({**row, "models": json.dumps(models)}))
    if not store.database.forget_log() and done.found_anything:
        logger.warning(
            "the store's files still hold what was deleted, since somebody is reading them; "
            "the next deletion or mining, or closing the store, overwrites it"
        )
    return done


def _examples(
    connection: Connection, sources: list[tuple[str, str]], found_by: Mapping[str, Select[Any]], tenant: str | None
) -> list[str]:
    table = schema.example_sources
    own = table.c.example_id.in_(select(schema.examples.c.id).where(schema.examples.c.tenant == tenant))
    made_of = _made_of(table, sources, found_by)
    query = select(table.c.example_id).distinct().where(made_of, own if tenant is not None else true())
    return sorted(connection.execute(query).scalars())


def _trained(
    connection: Connection, sources: list[tuple[str, str]], found_by: Mapping[str, Select[Any]], tenant: str | None
) -> list[tuple[str, str]]:
    """(version, example) of what models were trained on, though mining may since have replaced the example."""
    table = schema.model_sources
    other = table.alias()
    own = exists().where(
        other.c.version == table.c.version,
        other.c.example_id == table.c.example_id,
        other.c.kind == "tenant",
        other.c.source == tenant,
    )
    made_of = _made_of(table, sources, found_by)
    query = select(table.c.version, table.c.example_id).distinct()
    rows = connection.execute(query.where(made_of, own if tenant is not None else true())).all()
    return sorted((str(row[0]), str(row[1])) for row in rows)


def _made_of(table: Table, sources: list[tuple[str, str]], found_by: Mapping[str, Select[Any]]) -> ColumnElement[bool]:
    """:param found_by: kind of source → selects the names; there may be more than one statement can spell out."""
    conditions = [and_(table.c.kind == kind, table.c.source == source) for kind, source in sources]
    conditions += [and_(table.c.kind == kind, table.c.source.in_(names)) for kind, names in found_by.items()]
    return or_(false(), *conditions)


def _delete_examples(connection: Connection, examples: list[str], trained: list[tuple[str, str]]) -> None:
    """Examples with their sources; of those that models were trained on the sources, so that each counts once."""
    if trained:
        table = schema.model_sources
        chosen = and_(table.c.version == bindparam("model"), table.c.example_id == bindparam("example"))
        rows = [{"model": version, "example": name} for version, name in trained]
        connection.execute(delete(table).where(chosen), rows)
    if examples:
        for column in (schema.example_sources.c.example_id, schema.examples.c.id):
            rows = [{"example": name} for name in examples]
            connection.execute(delete(column.table).where(column == bindparam("example")), rows)


def _signals_on(shown: Any) -> Any:
    found = select(schema.shown.c.event_id).where(
        shown,
        schema.shown.c.event_id == schema.signals.c.event_id,
        schema.shown.c.position == schema.signals.c.position,
    )
    return found.exists()
