"""Mined examples in the store, and which model was trained on which."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from sqlalchemy import Connection, delete, func, literal, or_, select

from mnemorank.data.examples import Example
from mnemorank.data.formats import example_from_record, example_to_record
from mnemorank.data.records import Record
from mnemorank.learning.events import SEPARATOR, memory_identity
from mnemorank.learning.mining.labels import EASY
from mnemorank.learning.mining.miner import MinedExample
from mnemorank.learning.store import schema
from mnemorank.learning.store.database import Database, take_turns
from mnemorank.memory.memory import Memory

_ROWS = 500


def save(database: Database, mined: Iterable[MinedExample], origin: str, seen: int | None = None) -> bool:
    """Replace all examples of an origin (`feedback`, `golden`) by these, in one transaction.

    :param seen: `last_deletion` from before the log was read. After another deletion the examples may hold what it
        removed: nothing is stored then, and the answer is False.
    """
    given = list(mined)
    now = time.time()
    with database.writing() as connection:
        take_turns(connection)
        if seen is not None and _last_deletion(connection) != seen:
            return False
        stale = select(schema.examples.c.id).where(schema.examples.c.id.startswith(f"{origin}-"))
        connection.execute(delete(schema.example_sources).where(schema.example_sources.c.example_id.in_(stale)))
        connection.execute(delete(schema.examples).where(schema.examples.c.id.startswith(f"{origin}-")))
        for start in range(0, len(given), _ROWS):
            _insert(connection, given[start : start + _ROWS], now, database.salt)
    return True


def last_deletion(database: Database) -> int:
    """Changes with every deletion that removed something."""
    with database.reading() as connection:
        return _last_deletion(connection)


def load(database: Database, split: str | None = None) -> list[MinedExample]:
    """The stored examples, in a fixed order.

    :param split: `train` or `held-out`; both by default.
    """
    with database.reading() as connection:
        return _load(connection, split)


def untrained(database: Database) -> int:
    """How many training examples no model was trained on yet, as they are labelled now."""
    table, trained = schema.examples, schema.model_examples
    # Stores from before contents were kept know ids alone.
    is_same = or_(trained.c.content.is_(None), table.c.content.is_(None), trained.c.content == table.c.content)
    seen = select(trained.c.version).where(trained.c.example_id == table.c.id, is_same).exists()
    query = select(func.count()).select_from(table).where(table.c.split == "train", ~seen)
    with database.reading() as connection:
        return int(connection.execute(query).scalar_one())


def counts(database: Database) -> dict[str, int]:
    """How many examples each split has."""
    table = schema.examples
    with database.reading() as connection:
        rows = connection.execute(select(table.c.split, func.count()).group_by(table.c.split)).all()
    return {str(row[0]): int(row[1]) for row in rows}


def feedback_mark(database: Database) -> tuple[object, ...]:
    """Changes with every signal that is given, repeated, corrected or deleted."""
    table = schema.signals
    with database.reading() as connection:
        return tuple(connection.execute(select(func.count(), func.sum(table.c.repeats), func.max(table.c.time))).one())


def load_for_training(database: Database, version: str, split: str | None = None) -> list[MinedExample]:
    """`load`, and remember what a model is trained on, and its sources, for deletions after the next mining too.

    In one transaction: a deletion that comes before leaves nothing to load, and one that comes after finds the record.

    :param version: of the model; `run:ID` of one that is being trained.
    """
    with database.writing() as connection:
        take_turns(connection)
        given = _load(connection, split)
        _drop(connection, [version])
        _record_training(connection, version, given, database.salt)
    return given


def hand_over(database: Database, run: str, version: str) -> None:
    """Record for a version what was recorded for its run, less what was deleted in the meantime."""
    with database.writing() as connection:
        take_turns(connection)
        _drop(connection, [version])
        for table in (schema.model_examples, schema.model_sources):
            others = [column for column in table.c if column.name != "version"]
            rows = select(literal(version), *others).where(table.c.version == run)
            connection.execute(table.insert().from_select(["version", *(column.name for column in others)], rows))


def drop_trainings(database: Database, runs: Collection[str]) -> None:
    """Forget the trainings of runs that led to nothing: their examples are still to be trained on."""
    table = schema.model_examples
    with database.reading() as connection:
        known = connection.execute(select(table.c.version).distinct().where(table.c.version.startswith("run:")))
        dropped = sorted(set(known.scalars()) & set(runs))
    if dropped:
        with database.writing() as connection:
            _drop(connection, dropped)


def trained_on(database: Database, version: str) -> set[str]:
    """Ids of the examples a model was trained on, those deleted since included."""
    table = schema.model_examples
    with database.reading() as connection:
        return set(connection.execute(select(table.c.example_id).where(table.c.version == version)).scalars())


def not_deleted(database: Database, version: str) -> set[str]:
    """Ids of the examples recorded by `load_for_training` that no deletion has reached since."""
    # A deletion takes the sources of an example away, and every example has some.
    table = schema.model_sources
    query = select(table.c.example_id).distinct().where(table.c.version == version)
    with database.reading() as connection:
        return set(connection.execute(query).scalars())


def write_with_provenance(mined: Iterable[MinedExample], path: Path) -> int:
    """Write examples in our `lists` format, each with its provenance beside; returns how many."""
    written = 0
    with path.open("w", encoding="utf-8") as stream:
        for entry in mined:
            record = {**example_to_record(entry.example), "split": entry.split, "provenance": entry.provenance}
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
            written += 1
    return written


def content_of(entry: MinedExample, salt: bytes) -> str:
    """A keyed hash of what people said: texts and labels, without weights and easy negatives, which always shift."""
    candidates = entry.example.candidates
    told = entry.provenance.get("labels") or [{}] * len(candidates)
    count = Counter(candidate.memory.text for candidate in candidates)

    def words(memory: Memory) -> str:
        # The rest is told only where it is needed: contents of earlier versions are to stay the same.
        return memory_identity(memory.text, memory) if count[memory.text] > 1 else memory.text

    parts = sorted(
        f"{candidate.label:g}{SEPARATOR}{words(candidate.memory)}"
        for candidate, label in zip(candidates, told, strict=True)
        if EASY not in label.get("votes", ())
    )
    return hashlib.blake2b(SEPARATOR.join(parts).encode("utf-8", "replace"), key=salt, digest_size=10).hexdigest()


def _last_deletion(connection: Connection) -> int:
    return int(connection.execute(select(func.max(schema.deletions.c.id))).scalar() or 0)


def _load(connection: Connection, split: str | None) -> list[MinedExample]:
    table, sources = schema.examples, schema.example_sources
    query = select(table).order_by(table.c.id)
    if split is not None:
        query = query.where(table.c.split == split)
    rows = connection.execute(query).all()
    by_example: dict[str, set[tuple[str, str]]] = {}
    for row in connection.execute(select(sources)):
        by_example.setdefault(row.example_id, set()).add((row.kind, row.source))
    return [
        MinedExample(
            example_from_record(Record(json.loads(row.record), f"example {row.id}"), row.id),
            row.tenant,
            row.split,
            json.loads(row.provenance),
            frozenset(by_example.get(row.id, ())),
        )
        for row in rows
    ]


def _record_training(connection: Connection, version: str, given: Sequence[MinedExample], salt: bytes) -> None:
    rows = [{"version": version, "example_id": entry.example.id, "content": content_of(entry, salt)} for entry in given]
    sources = [
        {"version": version, "example_id": entry.example.id, "kind": kind, "source": source}
        for entry in given
        for kind, source in sorted(entry.sources)
    ]
    if rows:
        connection.execute(schema.model_examples.insert(), rows)
    if sources:
        connection.execute(schema.model_sources.insert(), sources)


def _drop(connection: Connection, versions: Sequence[str]) -> None:
    for table in (schema.model_examples, schema.model_sources):
        connection.execute(delete(table).where(table.c.version.in_(versions)))


def _insert(connection: Connection, given: Sequence[MinedExample], now: float, salt: bytes) -> None:
    rows = [
        {
            "id": entry.example.id,
            "tenant": entry.tenant,
            "split": entry.split,
            "record": _record(entry.example),
            "provenance": json.dumps(entry.provenance, ensure_ascii=False),
            "mined_at": now,
            "content": content_of(entry, salt),
        }
        for entry in given
    ]
    sources = [
        {"example_id": entry.example.id, "kind": kind, "source": source}
        for entry in given
        for kind, source in sorted(entry.sources)
    ]
    connection.execute(schema.examples.insert(), rows)
    connection.execute(schema.example_sources.insert(), sources)


def _record(example: Example) -> str:
    return json.dumps(example_to_record(example), ensure_ascii=False)
