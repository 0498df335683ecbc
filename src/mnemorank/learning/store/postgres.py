"""Connections to PostgreSQL that fail when the server does not respond."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import cache
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event

_CONNECT_TIMEOUT = 10
# Detect a dead network within half a minute rather than the two hours of the operating system.
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000}
# How much longer than its own time limit a server may take to report that a statement exceeded it.
_GRACE = 5.0


def create_postgres_engine(url: URL, lock_timeout: float, statement_timeout: float) -> Engine:
    """Create an engine whose statements fail after a time, in seconds, even if the server is frozen."""
    defaults = {"connect_timeout": _CONNECT_TIMEOUT, **_KEEPALIVE}
    engine = create_engine(
        url,
        connect_args={name: value for name, value in defaults.items() if name not in url.query},
        pool_pre_ping=True,
        pool_timeout=lock_timeout,
        hide_parameters=True,
    )

    @event.listens_for(engine, "do_connect")
    def _open(_dialect: object, _record: object, arguments: list[Any], options: dict[str, Any]) -> Any:
        connection = _connection_type().connect(*arguments, **options)
        connection.patience = statement_timeout + _GRACE
        return connection

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET lock_timeout = {lock_timeout * 1000:.0f}")
            cursor.execute(f"SET statement_timeout = {statement_timeout * 1000:.0f}")
        connection.commit()  # a rollback would undo the settings

    return engine


@cache
def _connection_type() -> Any:
    import psycopg

    class PatientConnection(psycopg.Connection[Any]):
        """A connection with a time limit of its own: that of the server does not help when the server is frozen.

        All that waits for the server goes through `wait`: statements, commits, rollbacks and pings.
        """

        patience = float("inf")

        def wait(self, gen: Generator[Any, Any, Any], *arguments: Any, **options: Any) -> Any:
            try:
                return super().wait(_limited(gen, self.patience), *arguments, **options)
            except TimeoutError:
                self.close()  # a later response would be taken for that of the next statement
                message = f"the server did not respond within {self.patience:g} seconds"
                raise psycopg.OperationalError(message) from None

    return PatientConnection


def _limited(steps: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
    """Forward the steps of the driver, which runs one at least every 0.1 seconds; raise TimeoutError at the end."""
    ends_at = time.monotonic() + seconds
    received = None
    while True:
        try:
            awaited = steps.send(received)
        except StopIteration as done:
            return done.value
        received = yield awaited
        if time.monotonic() >= ends_at:
            raise TimeoutError
