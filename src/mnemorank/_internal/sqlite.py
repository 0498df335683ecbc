"""SQLite files that threads and processes share."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Bounds the write-ahead log, which otherwise keeps the size of the largest transaction.
_MAX_LOG_BYTES = 64 * 1024 * 1024
_PAGE_BYTES = 8192
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class Database:
    """A connection to a SQLite file, which is created if it does not exist.

    Threads take turns. The connection is opened on first use, closed before a fork, since SQLite does not allow it to
    be inherited, and opened again when the file was replaced by another process.

    :param prepare: called with each new connection, for instance to create tables.
    :param timeout: how many seconds to wait for the locks of other connections.
    :param is_durable: a commit survives a power failure, too; otherwise only the end of the process.
    """

    def __init__(
        self,
        path: Path,
        prepare: Callable[[sqlite3.Connection], None],
        *,
        timeout: float,
        is_durable: bool = False,
    ) -> None:
        self.path = path
        self._prepare, self._timeout, self._is_durable = prepare, timeout, is_durable
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._is_closed = False
        with _registry:
            _databases.add(self)

    @contextmanager
    def use(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection. After an error it is closed, so that the next use starts afresh."""
        with self._lock:
            try:
                yield self._connect()
            except BaseException:
                self._disconnect()
                raise

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for a write transaction, committed unless the block raises an error."""
        with self.use() as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.execute("COMMIT")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._disconnect()

    def disconnect(self) -> None:
        """Close the connection; the next use opens another one."""
        with self._lock:
            self._disconnect()

    def move_aside(self, damaged: Path) -> bool:
        """Rename the file and its log, so that the next use begins a new one.

        :returns: False if another process has already replaced the file.
        """
        with self._lock:
            file, self._file = self._file, None
            self._disconnect()
            if _identity(self.path) is None or (file is not None and file != _identity(self.path)):
                return False
            # The database last: a log without its database is deleted by SQLite, but would be replayed into a new one.
            for suffix in ("-wal", "-shm", ""):
                with suppress(FileNotFoundError):
                    os.replace(f"{self.path}{suffix}", f"{damaged}{suffix}")
            return True

    def _connect(self) -> sqlite3.Connection:
        if self._is_closed:
            raise sqlite3.ProgrammingError("the database was closed")
        if self._connection is not None and self._file == _identity(self.path):
            return self._connection
        self._disconnect()
        connection = sqlite3.connect(
            self.path, timeout=self._timeout, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        self._connection, self._file = connection, _identity(self.path)
        # The first two take effect in a new file only.
        connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA journal_size_limit = {_MAX_LOG_BYTES}")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_durable else 'NORMAL'}")
        self._prepare(connection)
        return connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None


def is_damaged(error: sqlite3.Error) -> bool:
    """Return whether an error means that the content of the file is wrong."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return False
    return (
        code & 0xFF in _DAMAGED or code == sqlite3.SQLITE_IOERR_SHORT_READ or isinstance(error, sqlite3.IntegrityError)
    )


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether another connection held a lock for longer than the timeout."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BUSY


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


_registry = threading.Lock()
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_held: list[Database] = []


def _before_fork() -> None:
    _registry.acquire()
    _held[:] = list(_databases)
    for database in _held:
        database._lock.acquire()
        database._disconnect()


def _after_fork() -> None:
    for database in _held:
        database._lock.release()
    _held.clear()
    _registry.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
