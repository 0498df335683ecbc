"""IndexStore: the SQLite file of an index, with memories, their passages, states and words."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mnemorank._internal.sqlite import Database, Kind, UnusableFileError, is_busy, is_damaged
from mnemorank.errors import ConflictError, InputError, MnemorankError, NotFoundError, StorageError
from mnemorank.index.vectors import Vectors
from mnemorank.memory.memory import Memory
from mnemorank.scorers.state_file import STATES_TABLE, select_states, upsert_states
from mnemorank.scorers.states import Key, State
from mnemorank.text.bm25 import bm25
from mnemorank.text.words import terms

logger = logging.getLogger(__name__)

T = TypeVar("T")

_READ_TIMEOUT = 5.0
_WRITE_TIMEOUT = 30.0
# Repairs happen during a search, which must not wait for a writer.
_REPAIR_TIMEOUT = 0.05
_ROWS_AT_ONCE = 256
# Each term of a query costs time; a chat turn puts its question at the end.
_MAX_QUERY_TERMS = 64

_TABLES = (
    STATES_TABLE,
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value)",
    # `model` is the fingerprint of the model that read the memory.
    "CREATE TABLE memories (seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, record TEXT NOT NULL, "
    "digest BLOB NOT NULL, model TEXT NOT NULL)",
    "CREATE INDEX memories_by_digest ON memories (digest)",
    # Numbers of passages only grow, so that readers can ask for those that are new.
    "CREATE TABLE passages (seq INTEGER PRIMARY KEY AUTOINCREMENT, memory INTEGER NOT NULL, key BLOB NOT NULL, "
    "embedding BLOB NOT NULL, crc32 INTEGER NOT NULL)",
    "CREATE INDEX passages_by_memory ON passages (memory)",
    "CREATE INDEX passages_by_key ON passages (key)",
    "INSERT INTO settings VALUES ('removals', 0)",
)
_WORDS_TABLE = "CREATE VIRTUAL TABLE words USING fts5(terms, tokenize = 'unicode61 remove_diacritics 0')"
_MODEL_USES_KEY = (
    "SELECT 1 FROM passages JOIN memories ON memories.seq = passages.memory WHERE key = ? AND model = ? LIMIT 1"
)
_NEW_EMBEDDINGS = (
    "SELECT passages.seq, memory, CAST(embedding AS BLOB), crc32 FROM passages "
    "JOIN memories ON memories.seq = passages.memory "
    "WHERE passages.seq > ? AND model = ? ORDER BY passages.seq"
)
_VERSION = "SELECT coalesce((SELECT max(seq) FROM passages), 0), value FROM settings WHERE name = 'removals'"


def _create_tables(connection: sqlite3.Connection) -> None:
    for table in _TABLES:
        connection.execute(table)
    if connection.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone():
        connection.execute(_WORDS_TABLE)


_KIND = Kind(0x6D6E6978, 1, _create_tables, overwrites=True)


@dataclass(frozen=True, slots=True)
class Entry:
    """A memory with an id, and what a model read of it.

    :param states: of its passages, in order.
    """

    memory: Memory
    states: Mapping[Key, State]


@dataclass(frozen=True, slots=True)
class IndexStats:
    """What is in an index.

    :param passages: what is searched: memories, and windows of long ones.
    :param model: the name of the model; None for an index that was never added to.
    :param bytes: the size of the file.
    """

    memories: int
    passages: int
    model: str | None
    bytes: int


class Version(NamedTuple):
    """Changes whenever embeddings are added or removed.

    :param last: the number of the last passage.
    :param removals: how often passages were removed.
    """

    last: int = 0
    removals: int = 0


class IndexStore:
    """The file of an index: one writer at a time, any number of readers, in any number of processes.

    :param create: create the file if it does not exist.
    """

    def __init__(self, path: str | Path, *, create: bool = True) -> None:
        self.path = Path(path)
        if not create and not self.path.is_file():
            raise NotFoundError(f"no such index: {self.path}", field="path")
        self._reader = Database(self.path, _KIND, timeout=_READ_TIMEOUT, may_create=False)
        self._writer = Database(self.path, _KIND, timeout=_WRITE_TIMEOUT, may_create=create, is_durable=True)
        self._repairer = Database(self.path, _KIND, timeout=_REPAIR_TIMEOUT, may_create=False)
        try:
            if create:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._translated(), (self._writer if create else self._reader).use():
                pass
        except OSError as error:
            raise InputError(f"{self.path} cannot be opened: {error}", field="path", code="unusable") from None
        # If the file disappears from now on, that is an error and not a new index.
        self._writer.may_create = False

    def close(self) -> None:
        for database in (self._repairer, self._writer, self._reader):
            database.close()

    def put(self, entries: Sequence[Entry], model: str) -> None:
        """Add memories, or replace those with the same id, in one transaction.

        :param model: the fingerprint of the model that read them.
        """
        has_changed = False
        with self._writing() as connection:
            has_words = _has_words(connection)
            for entry in entries:
                record, digest = encode(entry.memory)
                row = connection.execute("SELECT seq, digest FROM memories WHERE id = ?", (entry.memory.id,)).fetchone()
                if row is None:
                    seq = connection.execute(
                        "INSERT INTO memories (id, record, digest, model) VALUES (?, ?, ?, ?)",
                        (entry.memory.id, record, digest, model),
                    ).lastrowid
                else:
                    seq, old_digest = row
                    has_changed = has_changed or old_digest != digest
                    _remove_parts(connection, [seq])
                    connection.execute(
                        "UPDATE memories SET record = ?, digest = ?, model = ? WHERE seq = ?",
                        (record, digest, model, seq),
                    )
                upsert_states(connection, model, entry.states)
                embeddings = [(key, state.embedding.tobytes()) for key, state in entry.states.items()]
                connection.executemany(
                    "INSERT INTO passages (memory, key, embedding, crc32) VALUES (?, ?, ?, ?)",
                    [(seq, key, data, zlib.crc32(data)) for key, data in embeddings],
                )
                if has_words:
                    words = " ".join(terms(_searched_text(entry.memory)))
                    connection.execute("INSERT INTO words (rowid, terms) VALUES (?, ?)", (seq, words))
            if has_changed:
                _erase_words(connection)
        if has_changed:
            self._empty_log()

    def delete(self, ids: Sequence[str]) -> int:
        """Delete memories, some hundred in one transaction; return how many there were."""
        deleted = 0
        for some in _chunks(ids):
            with self._writing() as connection:
                query = f"SELECT seq FROM memories WHERE id IN ({_places(some)})"
                seqs = [seq for (seq,) in connection.execute(query, some)]
                if seqs:
                    _remove_parts(connection, seqs)
                    connection.execute(f"DELETE FROM memories WHERE seq IN ({_places(seqs)})", seqs)
                    _erase_words(connection)
                    connection.execute("PRAGMA incremental_vacuum").fetchall()
            deleted += len(seqs)
        if deleted:
            self._empty_log()
        return deleted

    def states(self, keys: Sequence[Key], model: str) -> dict[Key, State]:
        with self._reading() as connection:
            return select_states(connection, model, keys)

    def repair_states(self, states: Mapping[Key, State], model: str) -> None:
        """Write states again if memories of the index need them, which means that they were damaged."""
        with self._reading() as connection:
            used = {key for key in states if connection.execute(_MODEL_USES_KEY, (key, model)).fetchone()}
        if used:
            with self._translated(), self._repairer.transaction() as connection:
                upsert_states(connection, model, {key: states[key] for key in used})

    def digests(self, ids: Sequence[str]) -> dict[str, tuple[bytes, str]]:
        """Return the digest of each memory that is there, and the fingerprint of the model that read it."""
        found: dict[str, tuple[bytes, str]] = {}
        with self._reading() as connection:
            for some in _chunks(ids):
                query = f"SELECT id, digest, model FROM memories WHERE id IN ({_places(some)})"
                found |= {id: (digest, model) for id, digest, model in connection.execute(query, some)}
        return found

    def id_of(self, digest: bytes) -> str | None:
        """Return the id of a memory with this digest, if there is one."""
        with self._reading() as connection:
            row = connection.execute("SELECT id FROM memories WHERE digest = ? LIMIT 1", (digest,)).fetchone()
        return None if row is None else str(row[0])

    def get(self, id: str) -> Memory | None:
        with self._reading() as connection:
            row = connection.execute("SELECT id, record, digest FROM memories WHERE id = ?", (id,)).fetchone()
        if row is None:
            return None
        memory = _decode(*row)
        if memory is None:
            raise StorageError(f"{self.path}: the memory {id!r:.80} is damaged; add it again or delete it")
        return memory

    def memories(self, seqs: Sequence[int]) -> dict[int, Memory]:
        """Return memories by their numbers, in this order; those that were deleted or are damaged are left out."""
        found: dict[int, Memory] = {}
        with self._reading() as connection:
            for some in _chunks(seqs):
                query = f"SELECT seq, id, record, digest FROM memories WHERE seq IN ({_places(some)})"
                for seq, id, record, digest in connection.execute(query, some):
                    memory = _decode(id, record, digest)
                    if memory is None:
                        logger.warning("%s: the memory %.80r is damaged and was left out", self.path, id)
                    else:
                        found[seq] = memory
        return {seq: found[seq] for seq in seqs if seq in found}

    def after(self, last: int, limit: int) -> list[int]:
        """Return the numbers of memories after the last one, in ascending order."""
        with self._reading() as connection:
            query = "SELECT seq FROM memories WHERE seq > ? ORDER BY seq LIMIT ?"
            return [seq for (seq,) in connection.execute(query, (last, limit))]

    def containing(self, values: Sequence[str]) -> list[int]:
        """Return the numbers of the memories that may have all these values as an id, a field or in their metadata."""
        clause = " AND ".join(["(id = ? OR instr(record, ?))"] * len(values))
        # What is not Unicode is in no record.
        texts = [text.encode(errors="replace").decode() for value in values for text in (value, _json(value))]
        with self._reading() as connection:
            return [seq for (seq,) in connection.execute(f"SELECT seq FROM memories WHERE {clause}", texts)]

    def outdated(self, model: str, after: int, limit: int) -> list[int]:
        """Return the numbers of memories that this model has not read, in ascending order."""
        with self._reading() as connection:
            query = "SELECT seq FROM memories WHERE model != ? AND seq > ? ORDER BY seq LIMIT ?"
            return [seq for (seq,) in connection.execute(query, (model, after, limit))]

    def with_words(self, query: str, limit: int | None = None) -> list[int]:
        """Return the numbers of the memories that share words with the query, the best by BM25 first."""
        wanted = list(dict.fromkeys(reversed(terms(query))))[:_MAX_QUERY_TERMS]
        if not wanted:
            return []
        with self._reading() as connection:
            if _has_words(connection):
                # Terms have no quotes. What FTS5 splits further is a phrase in both.
                match = " OR ".join(f'"{term}"' for term in wanted)
                found = "SELECT rowid FROM words WHERE words MATCH ? ORDER BY rank LIMIT ?"
                return [seq for (seq,) in connection.execute(found, (match, -1 if limit is None else limit))]
            rows = connection.execute("SELECT seq, id, record, digest FROM memories").fetchall()
        read = {seq: memory for seq, *row in rows if (memory := _decode(*row)) is not None}
        seqs, scores = list(read), bm25(query, [_searched_text(memory) for memory in read.values()])
        return [seqs[i] for i in np.argsort(-scores, kind="stable")[:limit] if scores[i] > 0]

    def refresh(self, vectors: Vectors, version: Version, model: str) -> tuple[Vectors, Version, list[int]]:
        """Return the embeddings as they are now, their version, and the numbers of memories with a damaged one.

        :param vectors: as they were at the given version.
        """
        with self._reading() as connection:
            connection.execute("BEGIN")  # so that all queries see the same state
            new = Version(*connection.execute(_VERSION).fetchone())
            damaged: list[int] = []
            if version.removals != new.removals:
                vectors = vectors.keep([seq for (seq,) in connection.execute("SELECT seq FROM passages")])
            if version != new:
                vectors, damaged = _extend(vectors, connection, version.last, model)
            connection.execute("COMMIT")
        return vectors, new, damaged

    def model(self) -> str | None:
        """Return the name of the model that the index was made with."""
        with self._reading() as connection:
            row = connection.execute("SELECT value FROM settings WHERE name = 'model'").fetchone()
        return None if row is None else str(row[0])

    def set_model(self, name: str) -> None:
        with self._writing() as connection:
            connection.execute("INSERT OR REPLACE INTO settings VALUES ('model', ?)", (name,))

    def count(self) -> int:
        with self._reading() as connection:
            return int(connection.execute("SELECT count(*) FROM memories").fetchone()[0])

    def stats(self) -> IndexStats:
        with self._reading() as connection:
            memories, passages = (
                connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("memories", "passages")
            )
        return IndexStats(memories, passages, self.model(), self.path.stat().st_size)

    def _empty_log(self) -> None:
        """Remove what was deleted from the log, too, unless others are reading right now."""
        with self._translated(), self._writer.use() as connection:
            connection.execute("PRAGMA busy_timeout = 0")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            connection.execute(f"PRAGMA busy_timeout = {int(1000 * _WRITE_TIMEOUT)}")

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._translated(), self._reader.use() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._translated(), self._writer.transaction() as connection:
            yield connection

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn the errors of SQLite into ours."""
        try:
            yield
        except sqlite3.Error as error:
            if isinstance(error, UnusableFileError) or getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
                raise StorageError(f"{self.path} is not an index: {error}") from None
            if is_busy(error):
                message = f"{self.path}: another process has been writing for too long; nothing was changed"
                raise ConflictError(message, code="busy") from error
            if is_damaged(error):
                message = f"{self.path}: the file is damaged ({error}); restore a backup, or add the memories again"
                raise StorageError(message) from error
            raise StorageError(f"{self.path}: {error}") from error


class IndexStates:
    """The states of an index as a split model uses them. Errors are reported: every state can be computed again."""

    def __init__(self, store: IndexStore, model: str) -> None:
        self._store, self._model = store, model

    def get(self, keys: Sequence[Key]) -> dict[Key, State]:
        try:
            return self._store.states(keys, self._model)
        except MnemorankError as error:
            logger.warning("states could not be read: %s", error)
            return {}

    def put(self, states: Mapping[Key, State]) -> None:
        """Replace damaged states. New memories are written as a whole, and nothing else is kept."""
        try:
            self._store.repair_states(states, self._model)
        except MnemorankError as error:
            logger.warning("a damaged state could not be replaced: %s", error)


def encode(memory: Memory) -> tuple[str, bytes]:
    """Return the JSON of a memory without its id, and a hash of it, which tells equal and damaged records."""
    fields = replace(memory, id=None).to_dict()
    for name, value in (("id", memory.id), *fields.items()):
        if isinstance(value, str) and not _is_unicode(value):
            raise InputError("has an unpaired surrogate, which cannot be stored", field=name)
    try:
        record = _json(fields)
        return record, hashlib.blake2b(record.encode(), digest_size=16).digest()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be stored as JSON: {error}", field="metadata") from None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, allow_nan=False)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _decode(id: str, record: Any, digest: bytes) -> Memory | None:
    """Return a memory, None if its record is damaged."""
    if not isinstance(record, str) or hashlib.blake2b(record.encode(), digest_size=16).digest() != digest:
        return None
    fields = json.loads(record)
    return Memory(**{**fields, "id": id, "entities": tuple(fields.get("entities", ()))})


def _searched_text(memory: Memory) -> str:
    parts = (memory.text, memory.context, memory.speaker, *memory.entities)
    return " ".join(part for part in parts if part)


def _has_words(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone() is not None


def _remove_parts(connection: sqlite3.Connection, seqs: Sequence[int]) -> None:
    """Delete the passages and words of memories, and the states that no other memory needs."""
    query = (
        "SELECT DISTINCT key, model FROM passages JOIN memories ON memories.seq = passages.memory "
        f"WHERE memory IN ({_places(seqs)})"
    )
    used = connection.execute(query, seqs).fetchall()
    connection.execute(f"DELETE FROM passages WHERE memory IN ({_places(seqs)})", seqs)
    for key, model in used:
        if connection.execute(_MODEL_USES_KEY, (key, model)).fetchone() is None:
            connection.execute("DELETE FROM states WHERE key = ? AND model = ?", (key, model))
    if _has_words(connection):
        connection.execute(f"DELETE FROM words WHERE rowid IN ({_places(seqs)})", seqs)
    connection.execute("UPDATE settings SET value = value + 1 WHERE name = 'removals'")


def _erase_words(connection: sqlite3.Connection) -> None:
    """Merge the word index, which otherwise keeps the words of deleted memories for a while."""
    if _has_words(connection):
        connection.execute("INSERT INTO words (words) VALUES ('optimize')")


def _extend(vectors: Vectors, connection: sqlite3.Connection, last: int, model: str) -> tuple[Vectors, list[int]]:
    """Add the embeddings of the passages after the last one; also return the memories with a damaged embedding."""
    passages: list[int] = []
    memories: list[int] = []
    damaged: list[int] = []
    data = bytearray()
    width = 0
    for seq, memory, embedding, crc32 in connection.execute(_NEW_EMBEDDINGS, (last, model)):
        if embedding is None or zlib.crc32(embedding) != crc32:
            damaged.append(memory)
            continue
        passages.append(seq)
        memories.append(memory)
        data += embedding
        width = len(embedding) // 2
    if not passages:
        return vectors, damaged
    return vectors.extend(passages, memories, np.frombuffer(data, np.float16).reshape(-1, width)), damaged


def _chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), _ROWS_AT_ONCE):
        yield items[first : first + _ROWS_AT_ONCE]


def _places(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))
