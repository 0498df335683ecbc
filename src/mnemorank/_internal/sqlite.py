"""SQLite files that threads and processes share."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mnemorank._internal.atomic import create_private

# Bounds the write-ahead log, which otherwise keeps the size of the largest transaction.
_MAX_LOG_BYTES = 64 * 1024 * 1024
_PAGE_BYTES = 8192
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


class UnusableFileError(sqlite3.DatabaseError):
    """The file is not a database of the expected kind."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a file is used for.

    :param application_id: tells its files from those of others.
    :param schema: the version of its tables. Files of a newer version are refused.
    :param create: creates the tables of a new file, inside a transaction.
    :param overwrites: overwrite what is deleted.
    """

    application_id: int
    schema: int
    create: Callable[[sqlite3.Connection], None]
    overwrites: bool = False


class Database:
    """A connection to a SQLite file.

    Threads take turns. The connection is opened on first use, closed before a fork, since SQLite does not allow it to
    be inherited, and opened again when the file was replaced by another process.

    :param may_create: create a file that does not exist; otherwise it is an UnusableFileError.
    :param timeout: how many seconds to wait for the locks of other connections.
    :param is_durable: a commit survives a power failure, too; otherwise only the end of the process.
    """

    def __init__(
        self,
        path: Path,
        kind: Kind,
        *,
        timeout: float,
        is_durable: bool = False,
        may_create: bool = True,
    ) -> None:
        self.path = path
        self.may_create = may_create
        self._kind, self._timeout, self._is_durable = kind, timeout, is_durable
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
        if not self.path.is_file():
            if not self.may_create:
                raise UnusableFileError("no such file")
            create_private(self.path)  # it may hold what users said; SQLite's log gets the same mode
        connection = sqlite3.connect(
            self.path, timeout=self._timeout, isolation_level=None, check_same_thread=False, cached_statements=32
        )
        # A damaged byte must spoil its own row, not all that are read with it.
        connection.text_factory = lambda data: data.decode(errors="replace")
        self._connection, self._file = connection, _identity(self.path)
        is_new = self._check(connection)
        if is_new:
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA journal_size_limit = {_MAX_LOG_BYTES}")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._is_durable else 'NORMAL'}")
        if self._kind.overwrites:
            connection.execute("PRAGMA secure_delete = ON")
        if is_new:
            connection.execute("BEGIN IMMEDIATE")
            if self._check(connection):  # otherwise another process was faster
                self._kind.create(connection)
                connection.execute(f"PRAGMA application_id = {self._kind.application_id}")
                connection.execute(f"PRAGMA user_version = {self._kind.schema}")
            connection.execute("COMMIT")
        return connection

    def _check(self, connection: sqlite3.Connection) -> bool:
        """Return whether the file is new; raise an error if it belongs to something else."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (schema,) = connection.execute("PRAGMA user_version").fetchone()
        if application == self._kind.application_id:
            if schema > self._kind.schema:
                raise UnusableFileError("it was written by a newer version of mnemorank")
            return False
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if application or tables or not self.may_create:
            raise UnusableFileError("it is a file of another program")
        return True

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
