"""Database connections of the event store: SQLite with a write-ahead log, or PostgreSQL."""

from __future__ import annotations

import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, TimeoutError

from mnemorank._internal.atomic import create_private, write_atomic
from mnemorank.errors import ConflictError, InputError, MissingExtraError
from mnemorank.learning.store import schema
from mnemorank.learning.store.postgres import create_postgres_engine

EVENT_TIMEOUT = 1.0
"""Default of `timeout_seconds`: how long recording an event may delay a response."""

# Seconds that everything else may wait: feedback, mining, deletion.
_LOCK_TIMEOUT = 30.0
_STATEMENT_TIMEOUT = 300.0
_CHECKPOINT_TIMEOUT = 0.2  # nobody can write meanwhile
_DELETION_LOCK = 7266839015


class Database:
    """Connections for reading and writing.

    Once `writing` exits without an error, the transaction survives a kill of the process. With SQLite, a power failure
    may lose the last transactions (`synchronous=NORMAL`), but never damages the file.

    :param url: a path or `sqlite:///PATH` for SQLite, `postgresql://…` for PostgreSQL.
    :param event_timeout: seconds that the database may keep a writer of events waiting.
    """

    def __init__(self, url: str | Path, *, event_timeout: float = EVENT_TIMEOUT) -> None:
        self.engine = _create_engine(url, _LOCK_TIMEOUT, _STATEMENT_TIMEOUT)
        self.is_sqlite = self.engine.dialect.name == "sqlite"
        # Events have separate connections: they do not wait for other users of the pool, and time out sooner.
        event_engine = _create_engine(url, event_timeout, event_timeout)
        self._event_engine = event_engine.execution_options(mnemorank_write=True)
        self._write_engine = self.engine.execution_options(mnemorank_write=True)
        # SQLite has one writer at a time. Threads that wait here do not poll for its lock.
        self._writer_lock = threading.Lock()
        self._needs_checkpoint = False
        try:
            with self.writing() as connection:
                schema.create_tables(connection)
                self.salt = _load_salt(connection)
        except InputError:
            self._dispose()
            raise
        except (DBAPIError, ValueError, TypeError) as error:  # drivers do not wrap all errors in the address
            self._dispose()
            shown = self.engine.url.set(query={}).render_as_string(hide_password=True)
            reason = error.orig if isinstance(error, DBAPIError) else error
            raise InputError(f"could not open {shown}: {reason}", field="store", code="unavailable") from None
        except BaseException:
            self._dispose()
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a transaction for writing. It waits for other threads, and up to 30 seconds for other processes."""
        with self._exclusive_writer(None) as busy_timeout, _begin(self._write_engine, busy_timeout) as connection:
            yield connection

    @contextmanager
    def writing_events(self, timeout: float) -> Iterator[Connection]:
        """Open a transaction that fails when the database is locked for longer than the timeout in seconds.

        PostgreSQL applies the `event_timeout` of the constructor to each statement.
        """
        with self._exclusive_writer(timeout) as busy_timeout, _begin(self._event_engine, busy_timeout) as connection:
            yield connection

    @contextmanager
    def _exclusive_writer(self, timeout: float | None) -> Iterator[float]:
        """Hold SQLite's writer lock; yield the seconds that remain for a lock of another process."""
        if not self.is_sqlite:
            yield 0.0
            return
        started = time.monotonic()
        if not self._writer_lock.acquire(timeout=-1 if timeout is None else timeout):
            raise TimeoutError(f"the store was locked by another thread for {timeout:g} seconds")
        try:
            yield _LOCK_TIMEOUT if timeout is None else max(timeout - (time.monotonic() - started), 0.0)
        finally:
            self._writer_lock.release()

    def checkpoint(self) -> bool:
        """Empty SQLite's write-ahead log, which otherwise keeps deleted texts; return False if a reader prevents it.

        `close` tries again.
        """
        if not self.is_sqlite:
            return True
        connecting = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with self._writer_lock, connecting as connection:
            connection.execute(text(_busy_timeout(_CHECKPOINT_TIMEOUT)))
            try:
                self._needs_checkpoint = bool(connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).one()[0])
            finally:
                connection.execute(text(_busy_timeout(_LOCK_TIMEOUT)))
        return not self._needs_checkpoint

    def close(self) -> None:
        try:
            if self._needs_checkpoint:
                self.checkpoint()
        finally:
            self._dispose()

    def _dispose(self) -> None:
        self.engine.dispose()
        self._event_engine.dispose()


@contextmanager
def _begin(engine: Engine, busy_timeout: float) -> Iterator[Connection]:
    with (
        engine.connect() as connection,
        connection.execution_options(mnemorank_busy_timeout=busy_timeout).begin(),
    ):
        yield connection


def lock_deletions(connection: Connection) -> None:
    """Serialize transactions that delete, or that store what was derived from the log.

    Call it first in the transaction. SQLite has one writer at a time anyway.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SELECT pg_advisory_xact_lock({_DELETION_LOCK})"))


def public_address(url: str | Path) -> str:
    """Return the address of a store without its credentials, for messages and comparisons."""
    with _url_errors():
        parsed = _parse_url(url)
        if parsed.get_backend_name() == "sqlite":
            return f"sqlite:///{Path(parsed.database or '').resolve()}"
        query = {name: value for name, value in parsed.query.items() if name in ("host", "port")}
        bare = URL.create("postgresql", None, None, parsed.host, parsed.port, parsed.database, query)
        return bare.render_as_string()


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A file in a loop's folder with the address of its store, if that is not the one in the settings.

    Without it, a command that lacks `--store` would silently use an empty store.

    :param path: the file.
    :param configured: the store in the settings.
    """

    path: Path
    configured: str

    def check(self, url: str | None) -> None:
        """Raise an error if no URL is given although the events are elsewhere."""
        if url is not None or not self.path.exists():
            return
        recorded = self.path.read_text(encoding="utf-8").strip()
        configured = public_address(self.configured)
        if recorded != configured:
            raise ConflictError(
                f"the events of this loop are in {recorded}; name it with --store or MNEMORANK_STORE. "
                f"To start over with {configured}, remove {self.path}",
                field="store",
                code="other_store",
            )

    def write(self, url: str) -> None:
        """Record the address in use, without credentials."""
        address = public_address(url)
        if address == public_address(self.configured):
            self.path.unlink(missing_ok=True)
        elif not self.path.exists() or self.path.read_text(encoding="utf-8").strip() != address:
            write_atomic(self.path, address + "\n")


def _parse_url(url: str | Path) -> URL:
    address = str(url)
    parsed = make_url(address if "://" in address else f"sqlite:///{address}")
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise InputError(f"expected a sqlite or postgresql URL, got {parsed!r}", field="store")
    return parsed


def _create_engine(url: str | Path, lock_timeout: float, statement_timeout: float) -> Engine:
    with _url_errors():
        parsed = _parse_url(url)
        if parsed.get_backend_name() == "sqlite":
            return _create_sqlite_engine(parsed)
        return create_postgres_engine(parsed, lock_timeout, statement_timeout)


@contextmanager
def _url_errors() -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (ArgumentError, NoSuchModuleError, ValueError):  # a port that is not a number is a `ValueError`
        raise InputError("expected a path, sqlite:///PATH or postgresql://USER@HOST/NAME", field="store") from None
    except ImportError as error:
        raise MissingExtraError(f"store: PostgreSQL needs `pip install 'mnemorank[postgres]'` ({error})") from error


def _create_sqlite_engine(url: URL) -> Engine:
    if url.database is None or url.database in ("", ":memory:"):
        raise InputError("expected the path of a file; an in-memory store would lose its events", field="store")
    path = Path(url.database)
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist", field="store", code="not_found")
    with suppress(OSError):  # SQLite reports what is wrong; its other files get the permissions of this one
        create_private(path)
    # Errors must not print parameters, which contain texts and end up in logs.
    engine = create_engine(
        url, connect_args={"timeout": _LOCK_TIMEOUT, "check_same_thread": False}, hide_parameters=True
    )

    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # `_begin` starts the transactions, not the driver
        connection.execute(_busy_timeout(_LOCK_TIMEOUT))
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        options = connection.get_execution_options()
        # Connections are pooled, so every transaction sets its own timeout.
        connection.exec_driver_sql(_busy_timeout(options.get("mnemorank_busy_timeout", _LOCK_TIMEOUT)))
        # A writer takes its lock at once: upgrading a reader's lock later may deadlock with another process.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("mnemorank_write") else "BEGIN")

    return engine


def _busy_timeout(seconds: float) -> str:
    return f"PRAGMA busy_timeout={seconds * 1000:.0f}"


def _load_salt(connection: Connection) -> bytes:
    """Return the key of the store's text hashes, without which nobody can find a text by hashing guesses."""
    salt = connection.execute(select(schema.settings.c.value).where(schema.settings.c.name == "salt")).scalar()
    if salt is None:
        salt = secrets.token_hex(16)
        connection.execute(schema.settings.insert().values(name="salt", value=salt))
    return bytes.fromhex(salt)
