"""StateFile: states on disk, in a SQLite file that many processes may share."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from mnemorank._internal.sqlite import Database, Kind, is_busy, is_damaged
from mnemorank._internal.threads import Workers
from mnemorank.errors import InputError
from mnemorank.scorers.states import Key, State

logger = logging.getLogger(__name__)

FILE = "states.db"
_APPLICATION_ID = 0x6D6E7374
_SCHEMA = 1
_DEFAULT_MAX_BYTES = 16_000_000_000
# Readers wait only while a crashed process's log is recovered.
_READ_TIMEOUT = 0.25
_WRITE_TIMEOUT = 10.0
_RETRY_SECONDS = 0.05
# States that wait to be written; further ones are computed again when they are needed.
_MAX_PENDING_BYTES = 64_000_000
_KEYS_AT_ONCE = 256
# Pages that are given back to the file system in one transaction.
_PAGES_AT_ONCE = 4096

STATES_TABLE = """
    CREATE TABLE states (
        seq INTEGER PRIMARY KEY,
        model TEXT NOT NULL,
        key BLOB NOT NULL,
        width INTEGER NOT NULL,
        crc32 INTEGER NOT NULL,
        state BLOB NOT NULL,
        UNIQUE (model, key)
    )
"""

_OLDEST = f"SELECT seq, length(state) FROM states ORDER BY seq LIMIT {_KEYS_AT_ONCE}"


def select_states(connection: sqlite3.Connection, model: str, keys: Sequence[Key]) -> dict[Key, State]:
    """Return the states that are there and undamaged."""
    found = {}
    for first in range(0, len(keys), _KEYS_AT_ONCE):
        some = keys[first : first + _KEYS_AT_ONCE]
        places = ", ".join("?" * len(some))
        query = f"SELECT key, width, crc32, CAST(state AS BLOB) FROM states WHERE model = ? AND key IN ({places})"
        for key, width, crc32, data in connection.execute(query, (model, *some)):
            is_intact = isinstance(width, int) and data is not None and _crc32(key, data) == crc32
            state = State.from_bytes(data, width) if is_intact else None
            if state is not None:
                found[key] = state
    return found


def upsert_states(connection: sqlite3.Connection, model: str, states: Mapping[Key, State]) -> None:
    """Add states, and replace damaged ones. Those that are there already are not written again."""
    rows = ((model, key, len(state.embedding), state.to_bytes()) for key, state in states.items())
    connection.executemany(
        "INSERT INTO states (model, key, width, crc32, state) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT (model, key) DO UPDATE SET width = excluded.width, crc32 = excluded.crc32, state = excluded.state "
        "WHERE crc32 IS NOT excluded.crc32 OR width IS NOT excluded.width OR state IS NOT excluded.state",
        ((model, key, width, _crc32(key, data), data) for model, key, width, data in rows),
    )


def _crc32(key: Key, data: bytes) -> int:
    return zlib.crc32(data, zlib.crc32(key))


class StateFile:
    """The states of one model, in a file that it shares with other models and processes.

    Every state can be computed again, so this never raises an error once it is open: states that cannot be read are
    missing, states that cannot be written in time are not stored, and a damaged file is moved aside.

    :param folder: created if needed; the file in it is `states.db`.
    :param model: identifies the weights. States of others are never returned.
    :param max_bytes: beyond this, the oldest states are deleted. The file keeps the limit for all who use it; None
        leaves it as it is, 16 GB in a new file.
    :param write_timeout: how many seconds to wait for other writers.
    """

    def __init__(
        self,
        folder: str | Path,
        model: str,
        *,
        max_bytes: int | None = None,
        write_timeout: float = _WRITE_TIMEOUT,
    ) -> None:
        self.path = Path(folder) / FILE
        self._max_bytes = max_bytes
        self._model, self._write_timeout = model, write_timeout
        kind = Kind(_APPLICATION_ID, _SCHEMA, self._create_tables)
        self._reader = Database(self.path, kind, timeout=_READ_TIMEOUT)
        self._writer = Database(self.path, kind, timeout=write_timeout)
        self._pending = _Pending()
        self._workers = Workers(1, "mnemorank-states")
        self._reported: set[object] = set()
        self._is_closed = False
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def get(self, keys: Sequence[Key]) -> dict[Key, State]:
        """Return the states that are there."""
        try:
            with self._reader.use() as connection:
                return select_states(connection, self._model, keys)
        except (sqlite3.Error, OSError) as error:
            self._handle(error, self._reader, "read")
            return {}

    def put(self, states: Mapping[Key, State]) -> None:
        """Write states in the background, many at once."""
        if not self._is_closed and self._pending.add(states):
            self._workers.submit(StateFile._write_pending, self)

    def store(self, states: Mapping[Key, State]) -> bool:
        """Write states in one transaction and wait until they are in the file; return whether they are."""
        self._pending.remove(states)
        return self._write(states)

    def close(self) -> None:
        """Write what is pending, and close the file."""
        self._is_closed = True
        self._workers.shutdown()
        self._writer.close()
        self._reader.close()

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._reader.use() as connection:
                if self._max_bytes is not None and self._max_bytes != _limit(connection):
                    connection.execute("UPDATE settings SET value = ? WHERE name = 'max_bytes'", (self._max_bytes,))
        except (sqlite3.Error, OSError) as error:
            is_temporary = isinstance(error, sqlite3.Error) and is_busy(error)
            if is_temporary or self._begin_anew(error, self._reader):
                return
            message = f"{self.path} cannot be used: {error}"
            raise InputError(message, field="states", code="unusable") from None

    def _write_pending(self) -> None:
        self._write(self._pending.take())

    def _write(self, states: Mapping[Key, State]) -> bool:
        give_up = time.monotonic() + self._write_timeout
        while states:
            try:
                with self._writer.transaction() as connection:
                    upsert_states(connection, self._model, states)
                break
            except (sqlite3.Error, OSError) as error:
                can_retry = self._handle(error, self._writer, "written")
                if not can_retry or time.monotonic() > give_up:
                    return False
            time.sleep(_RETRY_SECONDS)
        try:
            with self._writer.use() as connection:
                self._limit_size(connection)
        except (sqlite3.Error, OSError) as error:
            self._handle(error, self._writer, "shrunk")
        return True

    def _limit_size(self, connection: sqlite3.Connection) -> None:
        """Delete the oldest states if there are too many, and shrink the file. Continued by the next write if slow."""
        give_up = time.monotonic() + self._write_timeout
        limit = _limit(connection)
        while (excess := _bytes(connection)[0] - limit) > 0 and time.monotonic() < give_up:
            self._report("limit", f"reached its limit of {limit} bytes; the oldest states are deleted")
            last = None
            for seq, size in connection.execute(_OLDEST).fetchall():
                last, excess = seq, excess - size
                if excess <= 0:
                    break
            if last is None:
                return
            connection.execute("DELETE FROM states WHERE seq <= ?", (last,))
        used, total = _bytes(connection)
        if total <= limit:
            return
        while total > max(limit, used) and time.monotonic() < give_up:
            connection.execute(f"PRAGMA incremental_vacuum({_PAGES_AT_ONCE})").fetchall()
            used, total = _bytes(connection)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def _handle(self, error: sqlite3.Error | OSError, database: Database, act: str) -> bool:
        """Report an error; return whether trying again may help."""
        if self._is_closed:
            return False
        if self._begin_anew(error, database):
            return True
        self._report(getattr(error, "sqlite_errorcode", type(error)), f"could not be {act}: {error}")
        return isinstance(error, sqlite3.Error) and is_busy(error)

    def _begin_anew(self, error: sqlite3.Error | OSError, database: Database) -> bool:
        """Move the file aside if the error means that it is damaged; return whether a new one can be begun."""
        if not (isinstance(error, sqlite3.Error) and is_damaged(error)):
            return False
        damaged = self.path.with_name(f"{FILE}.damaged")
        other = self._writer if database is self._reader else self._reader
        try:
            other.disconnect()
            if database.move_aside(damaged):
                logger.warning("%s: is damaged (%s); moved to %s and started empty", self.path, error, damaged.name)
        except OSError as failure:
            self._report("move", f"is damaged ({error}) and could not be moved aside: {failure}")
            return False
        return True

    def _report(self, cause: object, message: str) -> None:
        """Log a warning, once for each cause."""
        if cause not in self._reported:
            self._reported.add(cause)
            logger.warning("%s: %s", self.path, message)

    def _create_tables(self, connection: sqlite3.Connection) -> None:
        connection.execute(STATES_TABLE)
        connection.execute("CREATE TABLE settings (name TEXT PRIMARY KEY, value)")
        limit = _DEFAULT_MAX_BYTES if self._max_bytes is None else self._max_bytes
        connection.execute("INSERT INTO settings VALUES ('max_bytes', ?)", (limit,))


class _Pending:
    """States that wait to be written, up to a total size. A forked process begins without any."""

    _states: dict[Key, State]

    def __init__(self) -> None:
        self._begin()

    def add(self, states: Mapping[Key, State]) -> bool:
        """Add states; return whether they are the first since the last `take`."""
        if self._process_id != os.getpid():
            self._begin()
        with self._lock:
            is_first = not self._states
            for key, state in states.items():
                if key not in self._states and self._bytes + state.size <= _MAX_PENDING_BYTES:
                    self._states[key] = state
                    self._bytes += state.size
            return is_first and bool(self._states)

    def remove(self, keys: Iterable[Key]) -> None:
        if self._process_id != os.getpid():
            self._begin()
        with self._lock:
            for key in keys:
                state = self._states.pop(key, None)
                self._bytes -= 0 if state is None else state.size

    def take(self) -> dict[Key, State]:
        with self._lock:
            states, self._states, self._bytes = self._states, {}, 0
        return states

    def _begin(self) -> None:
        self._process_id, self._lock = os.getpid(), threading.Lock()
        self._states, self._bytes = {}, 0


def _limit(connection: sqlite3.Connection) -> int:
    (limit,) = connection.execute("SELECT value FROM settings WHERE name = 'max_bytes'").fetchone()
    return int(limit)


def _bytes(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return how many bytes of the file are in use, and how many it has."""
    page_bytes, pages, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    )
    return page_bytes * (pages - free), page_bytes * pages
