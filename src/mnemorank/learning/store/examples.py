"""Mined examples in the store, and which model was trained on which."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, func, literal, select

from mnemorank.data.formats import example_from_record, example_to_record
from mnemorank.data.records import Record
from mnemorank.learning.events import SEPARATOR, memory_identity
from mnemorank.learning.mining.labels import EASY
from mnemorank.learning.mining.miner import MinedExample
from mnemorank.learning.store import schema
from mnemorank.learning.store.database import Database, lock_deletions
from mnemorank.memory.memory import Memory

_BATCH_SIZE = 500


def replace_examples(
    database: Database, mined: Iterable[MinedExample], origin: str, last_deletion: int | None = None
) -> bool:
    """Replace all examples of an origin (`feedback` or `golden`) in one transaction.

    :param last_deletion: `last_deletion_id` from before the log was read. If something has been deleted since, the
        examples may contain it: nothing is stored, and the result is False.
    """
    mined = list(mined)
    now = time.time()
    with database.writing() as connection:
        lock_deletions(connection)
        if last_deletion is not None and _last_deletion_id(connection) != last_deletion:
            return False
        old = select(schema.examples.c.id).where(schema.examples.c.id.startswith(f"{origin}-"))
        connection.execute(delete(schema.example_sources).where(schema.example_sources.c.example_id.in_(old)))
        connection.execute(delete(schema.examples).where(schema.examples.c.id.startswith(f"{origin}-")))
        for start in range(0, len(mined), _BATCH_SIZE):
            _insert(connection, mined[start : start + _BATCH_SIZE], now, database.salt)
    return True


def last_deletion_id(database: Database) -> int:
    """Return a number that changes with every deletion."""
    with database.reading() as connection:
        return _last_deletion_id(connection)


def load_examples(database: Database, split: str | None = None) -> list[MinedExample]:
    """Return the stored examples in a fixed order.

    :param split: `train` or `held-out`; both by default.
    """
    with database.reading() as connection:
        return _load(connection, split)


def count_untrained(database: Database) -> int:
    """Return the number of training examples that no model has seen with their current labels."""
    table, trained = schema.examples, schema.model_examples
    is_trained = (
        select(trained.c.version)
        .where(trained.c.example_id == table.c.id, trained.c.content == table.c.content)
        .exists()
    )
    query = select(func.count()).select_from(table).where(table.c.split == "train", ~is_trained)
    with database.reading() as connection:
        return int(connection.execute(query).scalar_one())


def count_examples(database: Database) -> dict[str, int]:
    """Return the number of examples in each split."""
    table = schema.examples
    with database.reading() as connection:
        rows = connection.execute(select(table.c.split, func.count()).group_by(table.c.split)).all()
    return {str(row[0]): int(row[1]) for row in rows}


def feedback_version(database: Database) -> tuple[object, ...]:
    """Return a value that changes when a signal is added, repeated, corrected or deleted."""
    table = schema.signals
    with database.reading() as connection:
        return tuple(connection.execute(select(func.count(), func.sum(table.c.repeats), func.max(table.c.time))).one())


def load_for_training(database: Database, version: str, split: str | None = None) -> list[MinedExample]:
    """Load examples, and record that a model is trained on them, with their sources.

    Both happen in one transaction: an earlier deletion leaves nothing to load, and a later one finds the record.

    :param version: the model version, or `run:ID` for a training run.
    """
    with database.writing() as connection:
        lock_deletions(connection)
        examples = _load(connection, split)
        _drop_records(connection, [version])
        _record_training(connection, version, examples, database.salt)
    return examples


def copy_training_record(database: Database, run: str, version: str) -> None:
    """Record for a version what was recorded for its run, without what has been deleted since."""
    with database.writing() as connection:
        lock_deletions(connection)
        _drop_records(connection, [version])
        for table in (schema.model_examples, schema.model_sources):
            others = [column for column in table.c if column.name != "version"]
            rows = select(literal(version), *others).where(table.c.version == run)
            connection.execute(table.insert().from_select(["version", *(column.name for column in others)], rows))


def drop_training_records(database: Database, runs: Collection[str]) -> None:
    """Forget what unsuccessful runs were trained on, so that their examples count as untrained."""
    table = schema.model_examples
    with database.reading() as connection:
        recorded = connection.execute(select(table.c.version).distinct().where(table.c.version.startswith("run:")))
        dropped = sorted(set(recorded.scalars()) & set(runs))
    if dropped:
        with database.writing() as connection:
            _drop_records(connection, dropped)


def trained_example_ids(database: Database, version: str) -> set[str]:
    """Return the ids of the examples that a model was trained on, including those deleted since."""
    table = schema.model_examples
    with database.reading() as connection:
        return set(connection.execute(select(table.c.example_id).where(table.c.version == version)).scalars())


def undeleted_example_ids(database: Database, version: str) -> set[str]:
    """Return the ids of the examples that a model was trained on, without those deleted since."""
    # A deletion removes the sources of an example, and every example has at least one.
    table = schema.model_sources
    query = select(table.c.example_id).distinct().where(table.c.version == version)
    with database.reading() as connection:
        return set(connection.execute(query).scalars())


def with_provenance(mined: MinedExample) -> dict[str, Any]:
    """Return an example as a record of the `lists` format, with its split and provenance."""
    return {**example_to_record(mined.example), "split": mined.split, "provenance": mined.provenance}


def write_with_provenance(mined: Iterable[MinedExample], path: Path) -> int:
    """Write examples in the `lists` format, each with its split and provenance; return how many."""
    count = 0
    with path.open("w", encoding="utf-8") as stream:
        for entry in mined:
            stream.write(json.dumps(with_provenance(entry), ensure_ascii=False) + "\n")
            count += 1
    return count


def content_hash(entry: MinedExample, salt: bytes) -> str:
    """Return a keyed hash of what users said: texts and labels.

    Weights and easy negatives are left out, because they change with every mining.
    """
    candidates = entry.example.candidates
    provenance = entry.provenance.get("labels") or [{}] * len(candidates)
    count_by_text = Counter(candidate.memory.text for candidate in candidates)

    def key(memory: Memory) -> str:
        return memory_identity(memory.text, memory) if count_by_text[memory.text] > 1 else memory.text

    parts = sorted(
        f"{candidate.label:g}{SEPARATOR}{key(candidate.memory)}"
        for candidate, label in zip(candidates, provenance, strict=True)
        if EASY not in label.get("votes", ())
    )
    return hashlib.blake2b(SEPARATOR.join(parts).encode("utf-8", "replace"), key=salt, digest_size=10).hexdigest()


def _last_deletion_id(connection: Connection) -> int:
    return int(connection.execute(select(func.max(schema.deletions.c.id))).scalar() or 0)


def _load(connection: Connection, split: str | None) -> list[MinedExample]:
    table, sources = schema.examples, schema.example_sources
    query = select(table).order_by(table.c.id)
    if split is not None:
        query = query.where(table.c.split == split)
    rows = connection.execute(query).all()
    sources_by_example: dict[str, set[tuple[str, str]]] = {}
    for row in connection.execute(select(sources)):
        sources_by_example.setdefault(row.example_id, set()).add((row.kind, row.source))
    return [
        MinedExample(
            example_from_record(Record(json.loads(row.record), f"example {row.id}"), row.id),
            row.tenant,
            row.split,
            json.loads(row.provenance),
            frozenset(sources_by_example.get(row.id, ())),
        )
        for row in rows
    ]


def _record_training(connection: Connection, version: str, examples: Sequence[MinedExample], salt: bytes) -> None:
    rows = [
        {"version": version, "example_id": entry.example.id, "content": content_hash(entry, salt)} for entry in examples
    ]
    sources = [
        {"version": version, "example_id": entry.example.id, "kind": kind, "source": source}
        for entry in examples
        for kind, source in sorted(entry.sources)
    ]
    if rows:
        connection.execute(schema.model_examples.insert(), rows)
    if sources:
        connection.execute(schema.model_sources.insert(), sources)


def _drop_records(connection: Connection, versions: Sequence[str]) -> None:
    for table in (schema.model_examples, schema.model_sources):
        connection.execute(delete(table).where(table.c.version.in_(versions)))


def _insert(connection: Connection, mined: Sequence[MinedExample], now: float, salt: bytes) -> None:
    rows = [
        {
            "id": entry.example.id,
            "tenant": entry.tenant,
            "split": entry.split,
            "record": json.dumps(example_to_record(entry.example), ensure_ascii=False),
            "provenance": json.dumps(entry.provenance, ensure_ascii=False),
            "mined_at": now,
            "content": content_hash(entry, salt),
        }
        for entry in mined
    ]
    sources = [
        {"example_id": entry.example.id, "kind": kind, "source": source}
        for entry in mined
        for kind, source in sorted(entry.sources)
    ]
    connection.execute(schema.examples.insert(), rows)
    connection.execute(schema.example_sources.insert(), sources)
