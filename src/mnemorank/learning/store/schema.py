"""The tables, and the migrations that make them. A migration never changes once released; a change is a new one."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
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

metadata = MetaData()
_ID = BigInteger().with_variant(Integer, "sqlite")

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
    Column("position", Integer, primary_key=True),
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
    Column("id", _ID, primary_key=True),
    Column("event_id", String, nullable=False),
    Column("position", Integer, nullable=False),
    Column("actor", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("late", Boolean, nullable=False),
    Column("value", Double),
    Column("note", Text),
    Column("time", Double, nullable=False),
    Column("repeats", Integer, nullable=False),
    UniqueConstraint("event_id", "position", "actor", "kind", "late"),
    Index("signals_by_actor", "actor"),
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
    Column("content", String),
)

# What an example was made of, so that a deletion finds it: an event, a signal's actor, or a memory's text hash.
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
    Column("content", String),
    Index("model_examples_by_example", "example_id"),
)

# What the examples were made of when a model was trained on them; mining replaces the examples' own sources.
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
    Column("id", _ID, primary_key=True),
    Column("time", Double, nullable=False),
    Column("scope", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("events", Integer, nullable=False),
    Column("signals", Integer, nullable=False),
    Column("examples", Integer, nullable=False),
    Column("models", Text, nullable=False),
)

shadow_scores = Table(
    "shadow_scores",
    metadata,
    Column("event_id", String, primary_key=True),
    Column("version", String, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("score", Double),
)

_MIGRATIONS: tuple[str, ...] = (
    # 1: events and signals
    """
    CREATE TABLE events (id VARCHAR PRIMARY KEY, time DOUBLE PRECISION NOT NULL, tenant VARCHAR NOT NULL,
      actor VARCHAR, query TEXT, query_time VARCHAR, model_version VARCHAR NOT NULL,
      abstained BOOLEAN NOT NULL, test BOOLEAN NOT NULL);
    CREATE INDEX events_by_time ON events (time);
    CREATE INDEX events_by_actor ON events (tenant, actor);
    CREATE TABLE shown (event_id VARCHAR NOT NULL, position INTEGER NOT NULL, memory_id VARCHAR,
      text_hash VARCHAR NOT NULL, relevance DOUBLE PRECISION, raw_score DOUBLE PRECISION,
      propensity DOUBLE PRECISION NOT NULL, memory TEXT, PRIMARY KEY (event_id, position));
    CREATE INDEX shown_by_memory ON shown (memory_id);
    CREATE TABLE signals (id {identity}, event_id VARCHAR NOT NULL, position INTEGER NOT NULL,
      actor VARCHAR NOT NULL, kind VARCHAR NOT NULL, late BOOLEAN NOT NULL, value DOUBLE PRECISION, note TEXT,
      time DOUBLE PRECISION NOT NULL, repeats INTEGER NOT NULL, UNIQUE (event_id, position, actor, kind, late));
    CREATE INDEX signals_by_actor ON signals (actor)
    """,
    # 2: mined examples, the models trained on them, deletions
    """
    CREATE TABLE examples (id VARCHAR PRIMARY KEY, tenant VARCHAR NOT NULL, split VARCHAR NOT NULL,
      record TEXT NOT NULL, provenance TEXT NOT NULL, mined_at DOUBLE PRECISION NOT NULL);
    CREATE TABLE example_sources (example_id VARCHAR NOT NULL, kind VARCHAR NOT NULL, source VARCHAR NOT NULL,
      PRIMARY KEY (example_id, kind, source));
    CREATE INDEX example_sources_by_source ON example_sources (kind, source);
    CREATE TABLE model_examples (version VARCHAR NOT NULL, example_id VARCHAR NOT NULL,
      PRIMARY KEY (version, example_id));
    CREATE INDEX model_examples_by_example ON model_examples (example_id);
    CREATE TABLE deletions (id {identity}, time DOUBLE PRECISION NOT NULL, scope VARCHAR NOT NULL,
      subject VARCHAR NOT NULL, events INTEGER NOT NULL, signals INTEGER NOT NULL, examples INTEGER NOT NULL,
      models TEXT NOT NULL)
    """,
    # 3: shadow mode
    """
    CREATE TABLE shadow_scores (event_id VARCHAR NOT NULL, version VARCHAR NOT NULL, position INTEGER NOT NULL,
      score DOUBLE PRECISION, PRIMARY KEY (event_id, version, position))
    """,
    # 4: what examples say, and the sources of those a model was trained on
    """
    ALTER TABLE examples ADD COLUMN content VARCHAR;
    ALTER TABLE model_examples ADD COLUMN content VARCHAR;
    CREATE TABLE model_sources (version VARCHAR NOT NULL, example_id VARCHAR NOT NULL, kind VARCHAR NOT NULL,
      source VARCHAR NOT NULL, PRIMARY KEY (version, example_id, kind, source));
    CREATE INDEX model_sources_by_source ON model_sources (kind, source);
    INSERT INTO model_sources (version, example_id, kind, source)
      SELECT m.version, s.example_id, s.kind, s.source
      FROM model_examples m JOIN example_sources s ON s.example_id = m.example_id
    """,
)
VERSION = len(_MIGRATIONS)
_IDENTITY = {
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
    "postgresql": "BIGINT GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY",
}


def migrate(connection: Connection, to: int = VERSION) -> None:
    """Bring the database up to date; call inside a transaction that holds the write lock."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(7266839014)"))
    version = schema_version(connection)
    if version > VERSION:
        raise InputError(f"the event store has schema {version}, newer than this mnemorank reads ({VERSION}); upgrade")
    for number in range(version + 1, to + 1):
        for statement in _MIGRATIONS[number - 1].split(";"):
            connection.execute(text(statement.format(identity=_IDENTITY[connection.dialect.name])))
        connection.execute(
            settings.update().where(settings.c.name == "schema").values(value=str(number))
            if number > 1
            else settings.insert().values(name="schema", value="1")
        )


def schema_version(connection: Connection) -> int:
    """0 for an empty database."""
    if not inspect(connection).has_table("settings"):
        connection.execute(text("CREATE TABLE settings (name VARCHAR PRIMARY KEY, value VARCHAR)"))
        return 0
    found = connection.execute(select(settings.c.value).where(settings.c.name == "schema")).scalar()
    return int(found or 0)
