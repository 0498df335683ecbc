"""Tables of the event store, and the check of their version."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Identity,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
    text,
)

from mnemorank.errors import InputError

VERSION = 2
"""Version of the tables. From the first release on, Alembic migrates older ones."""

WHOLE_EVENT = 0
"""`signals.rank` of a signal on the answer as a whole; ranks of memories start at 1."""

metadata = MetaData()
_ID = BigInteger().with_variant(Integer, "sqlite")
_CREATE_LOCK = 7266839014

settings = Table("settings", metadata, Column("name", String, primary_key=True), Column("value", String))

events = Table(
    "events",
    metadata,
    Column("id", String, primary_key=True),
    Column("time", Double, nullable=False),
    Column("tenant", String, nullable=False),
    Column("actor", String),
    Column("query", Text),
    Column("query_time", String),
    Column("model_version", String, nullable=False),
    Column("abstained", Boolean, nullable=False),
    Column("test", Boolean, nullable=False),
    Index("events_by_time", "time"),
    Index("events_by_actor", "tenant", "actor"),
)

shown = Table(
    "shown",
    metadata,
    Column("event_id", String, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("memory_id", String),
    Column("text_hash", String, nullable=False),
    Column("relevance", Double),
    Column("raw_score", Double),
    Column("propensity", Double, nullable=False),
    Column("memory", Text),
    Index("shown_by_memory", "memory_id"),
)

signals = Table(
    "signals",
    metadata,
    Column("id", _ID, Identity(), primary_key=True),
    Column("event_id", String, nullable=False),
    Column("rank", Integer, nullable=False),
    Column("actor", String, nullable=False),
    Column("caller", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("late", Boolean, nullable=False),
    Column("value", Double),
    Column("note", Text),
    Column("time", Double, nullable=False),
    Column("repeats", Integer, nullable=False),
    UniqueConstraint("event_id", "rank", "actor", "caller", "kind", "late"),
    Index("signals_by_actor", "actor"),
    sqlite_autoincrement=True,
)

examples = Table(
    "examples",
    metadata,
    Column("id", String, primary_key=True),
    Column("tenant", String, nullable=False),
    Column("split", String, nullable=False),
    Column("record", Text, nullable=False),
    Column("provenance", Text, nullable=False),
    Column("mined_at", Double, nullable=False),
    Column("content", String, nullable=False),
)

# What an example was made from (events, actors, texts, memories), so that a deletion finds it.
example_sources = Table(
    "example_sources",
    metadata,
    Column("example_id", String, primary_key=True),
    Column("kind", String, primary_key=True),
    Column("source", String, primary_key=True),
    Index("example_sources_by_source", "kind", "source"),
)

model_examples = Table(
    "model_examples",
    metadata,
    Column("version", String, primary_key=True),
    Column("example_id", String, primary_key=True),
    Column("content", String, nullable=False),
    Index("model_examples_by_example", "example_id"),
)

# The sources of an example when a model was trained on it. Mining replaces `example_sources`.
model_sources = Table(
    "model_sources",
    metadata,
    Column("version", String, primary_key=True),
    Column("example_id", String, primary_key=True),
    Column("kind", String, primary_key=True),
    Column("source", String, primary_key=True),
    Index("model_sources_by_source", "kind", "source"),
)

deletions = Table(
    "deletions",
    metadata,
    Column("id", _ID, Identity(), primary_key=True),
    Column("time", Double, nullable=False),
    Column("scope", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("events", Integer, nullable=False),
    Column("signals", Integer, nullable=False),
    Column("examples", Integer, nullable=False),
    Column("models", Text, nullable=False),
    sqlite_autoincrement=True,
)

shadow_scores = Table(
    "shadow_scores",
    metadata,
    Column("event_id", String, primary_key=True),
    Column("version", String, primary_key=True),
    Column("rank", Integer, primary_key=True),
    Column("score", Double),
)


def create_tables(connection: Connection) -> None:
    """Create the tables in an empty database, or check that existing ones have the expected version.

    Call it inside a transaction that holds the write lock.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_CREATE_LOCK})"))
    if not inspect(connection).has_table(settings.name):
        metadata.create_all(connection)
        connection.execute(settings.insert().values(name="schema_version", value=str(VERSION)))
        return
    version = connection.execute(select(settings.c.value).where(settings.c.name == "schema_version")).scalar()
    if version != str(VERSION):
        raise InputError(
            f"expected version {VERSION} of the event store's tables, got {version or 'an unknown one'}; "
            f"use the mnemorank that created the store, or start a new store",
            field="store",
            code="schema_version",
        )
