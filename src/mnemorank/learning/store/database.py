"""Opening the store's database: SQLite with a write-ahead log, or PostgreSQL."""

from __future__ import annotations

import secrets
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, TimeoutError

from mnemorank.errors import InputError, MissingExtraError
from mnemorank.learning.store import schema

_PATIENCE = 30_000  # milliseconds that SQLite waits for another process's lock
EVENT_PATIENCE = 1_000  # for a lock, while an answer waits for its event to be written
_LOG_PATIENCE = 200  # for others to leave the log; nobody can write meanwhile


class Database:
    """Connections for reading and for writing.

    A transaction that `writing` leaves without an error is on disk as far as the process is concerned: no kill of it
    loses the transaction. With SQLite a power cut may lose the last ones (`synchronous=NORMAL`), never damage the file.

    :param url: a path or `sqlite:///PATH` for SQLite, `postgresql://…` for PostgreSQL.
    """

    def __init__(self, url: str | Path) -> None:
        self.engine = _engine(url)
        self._writes = self.engine.execution_options(mnemorank_write=True)
        # SQLite takes one writer at a time; threads that queue here do not poll for its lock.
        self._one_writer = threading.Lock() if self.engine.dialect.name == "sqlite" else None
        self._log_is_due = False
        try:
            with self.writing() as connection:
                schema.migrate(connection)
                self.salt = _salt(connection)
        except DBAPIError as error:
            self.engine.dispose()
            shown = self.engine.url.set(query={}).render_as_string(hide_password=True)
            raise InputError(f"cannot open {shown}: {error.orig}", field="store") from None
        except BaseException:
            self.engine.dispose()
            raise

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        with self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self, patience: int | None = None) -> Iterator[Connection]:
        """A transaction that writes.

        :param patience: milliseconds that SQLite's lock is waited for. By default as long as other threads need, and
            half a minute for another process.
        """
        wait = _PATIENCE if patience is None else patience
        with (
            self._sole_writer(patience),
            self._writes.connect() as connection,
            connection.execution_options(mnemorank_patience=wait).begin(),
        ):
            yield connection

    @contextmanager
    def _sole_writer(self, patience: int | None) -> Iterator[None]:
        if self._one_writer is None:
            yield
            return
        if not self._one_writer.acquire(timeout=-1 if patience is None else patience / 1000):
            raise TimeoutError(f"the store was locked by another thread for {patience} ms")
        try:
            yield
        finally:
            self._one_writer.release()

    def forget_log(self) -> bool:
        """Empty SQLite's log, which keeps what was written, deleted texts too, until it is moved into the file.

        False where somebody still uses it; `close` then tries again.
        """
        if self._one_writer is None:
            return True
        connecting = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        with self._one_writer, connecting as connection:
            connection.execute(text(f"PRAGMA busy_timeout={_LOG_PATIENCE}"))
            try:
                self._log_is_due = bool(connection.execute(text("PRAGMA wal_checkpoint(TRUNCATE)")).one()[0])
            finally:
                connection.execute(text(f"PRAGMA busy_timeout={_PATIENCE}"))
        return not self._log_is_due

    def close(self) -> None:
        try:
            if self._log_is_due:
                self.forget_log()
        finally:
            self.engine.dispose()


def take_turns(connection: Connection) -> None:
    """Begin a transaction with this that deletes, or stores what was made of the log: none sees half of another.

    SQLite has one writer at a time as it is.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(7266839015)"))


def address(url: str | Path) -> str:
    """Where a store is, without what is secret about it: to be told, and to see whether two are the same."""
    with _told_errors():
        parsed = _parsed(url)
        if parsed.get_backend_name() == "sqlite":
            return f"sqlite:///{Path(parsed.database or '').resolve()}"
        query = {name: value for name, value in parsed.query.items() if name in ("host", "port")}
        bare = URL.create("postgresql", None, None, parsed.host, parsed.port, parsed.database, query)
        return bare.render_as_string()


def _parsed(url: str | Path) -> URL:
    given = str(url)
    parsed = make_url(given if "://" in given else f"sqlite:///{given}")
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise InputError(f"expected a sqlite or postgresql URL, got {parsed!r}", field="store")
    return parsed


def _engine(url: str | Path) -> Engine:
    with _told_errors():
        parsed = _parsed(url)
        if parsed.get_backend_name() == "sqlite":
            return _sqlite(parsed)
        return create_engine(parsed, pool_pre_ping=True, hide_parameters=True)


@contextmanager
def _told_errors() -> Iterator[None]:
    try:
        yield
    except (ArgumentError, NoSuchModuleError):
        raise InputError("expected a path, sqlite:///PATH or postgresql://USER@HOST/NAME", field="store") from None
    except ImportError as error:
        raise MissingExtraError(f"store: PostgreSQL needs `pip install 'mnemorank[postgres]'` ({error})") from error


def _sqlite(url: URL) -> Engine:
    if url.database is None or url.database in ("", ":memory:"):
        raise InputError("expected the path of a file; a store in memory would lose its events", field="store")
    path = Path(url.database)
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist", field="store")
    # Errors do not print parameters: they hold texts, and end up in logs.
    engine = create_engine(url, connect_args={"timeout": 30, "check_same_thread": False}, hide_parameters=True)

    @event.listens_for(engine, "connect")
    def _connect(connection: sqlite3.Connection, _record: object) -> None:
        connection.isolation_level = None  # transactions are begun below, not by the driver
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", f"busy_timeout={_PATIENCE}", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A writer takes its lock at once: to upgrade a reader's later may deadlock with another process.
        options = connection.get_execution_options()
        writes = options.get("mnemorank_write")
        # Connections are shared: each transaction says how long it waits, whatever the one before it said.
        connection.exec_driver_sql(f"PRAGMA busy_timeout={options.get('mnemorank_patience', _PATIENCE)}")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _salt(connection: Connection) -> bytes:
    """The key of the store's text hashes, so that nobody finds a text by hashing guesses without the store."""
    found = connection.execute(select(schema.settings.c.value).where(schema.settings.c.name == "salt")).scalar()
    if found is None:
        found = secrets.token_hex(16)
        connection.execute(schema.settings.insert().values(name="salt", value=found))
    return bytes.fromhex(found)
