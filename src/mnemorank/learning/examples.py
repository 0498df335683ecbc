"""Mined examples in the store, and which model was trained on which."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from sqlalchemy import Connection, delete, func, select

from mnemorank.data.records import Example, example_of, example_record
from mnemorank.learning import schema
from mnemorank.learning.database import Database
from mnemorank.learning.mining import MinedExample

_ROWS = 500


def save(database: Database, mined: Iterable[MinedExample], origin: str) -> None:
    """Replace all examples of an origin (`feedback`, `golden`) by these, in one transaction."""
    given = list(mined)
    now = time.time()
    with database.writing() as connection:
        stale = select(schema.examples.c.id).where(schema.examples.c.id.startswith(f"{origin}-"))
        connection.execute(delete(schema.example_sources).where(schema.example_sources.c.example_id.in_(stale)))
        connection.execute(delete(schema.examples).where(schema.examples.c.id.startswith(f"{origin}-")))
        for start in range(0, len(given), _ROWS):
            _insert(connection, given[start : start + _ROWS], now)


def load(database: Database, split: str | None = None) -> list[MinedExample]:
    """The stored examples, in a fixed order.

    :param split: `train` or `held-out`; both by default.
    """
    table, sources = schema.examples, schema.example_sources
    query = select(table).order_by(table.c.id)
    if split is not None:
        query = query.where(table.c.split == split)
    with database.reading() as connection:
        rows = connection.execute(query).all()
        by_example: dict[str, set[tuple[str, str]]] = {}
        for row in connection.execute(select(sources)):
            by_example.setdefault(row.example_id, set()).add((row.kind, row.source))
    return [
        MinedExample(
            example_of(json.loads(row.record), f"example {row.id}", row.id),
            row.tenant,
            row.split,
            json.loads(row.provenance),
            frozenset(by_example.get(row.id, ())),
        )
        for row in rows
    ]


def untrained(database: Database) -> int:
    """How many training examples no model was trained on yet."""
    table = schema.examples
    seen = select(schema.model_examples.c.example_id)
    query = select(func.count()).select_from(table).where(table.c.split == "train", table.c.id.not_in(seen))
    with database.reading() as connection:
        return int(connection.execute(query).scalar_one())


def counts(database: Database) -> dict[str, int]:
    """How many examples each split has."""
    table = schema.examples
    with database.reading() as connection:
        rows = connection.execute(select(table.c.split, func.count()).group_by(table.c.split)).all()
    return {str(row[0]): int(row[1]) for row in rows}


def record_training(database: Database, version: str, example_ids: Collection[str]) -> None:
    """Remember what a model was trained on, so that a later deletion can say which models it concerns.

    :param version: of the model; `run:ID` of one that is being trained.
    """
    rows = [{"version": version, "example_id": example_id} for example_id in sorted(set(example_ids))]
    with database.writing() as connection:
        connection.execute(delete(schema.model_examples).where(schema.model_examples.c.version == version))
        if rows:
            connection.execute(schema.model_examples.insert(), rows)


def trained_on(database: Database, version: str) -> set[str]:
    """Ids of the examples a model was trained on, those deleted since included."""
    table = schema.model_examples
    with database.reading() as connection:
        return set(connection.execute(select(table.c.example_id).where(table.c.version == version)).scalars())


def write_with_provenance(mined: Iterable[MinedExample], path: Path) -> int:
    """Write examples in our `lists` format, each with its provenance beside; returns how many."""
    written = 0
    with path.open("w", encoding="utf-8") as stream:
        for entry in mined:
            record = {**example_record(entry.example), "split": entry.split, "provenance": entry.provenance}
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")
            written += 1
    return written


def _insert(connection: Connection, given: Sequence[MinedExample], now: float) -> None:
    rows = [
        {
            "id": entry.example.id,
            "tenant": entry.tenant,
            "split": entry.split,
            "record": _record(entry.example),
            "provenance": json.dumps(entry.provenance, ensure_ascii=False),
            "mined_at": now,
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
    return json.dumps(example_record(example), ensure_ascii=False)
