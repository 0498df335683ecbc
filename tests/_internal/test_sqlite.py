"""SQLite files that threads and processes share."""

import sqlite3
import stat
import threading
from contextlib import closing

import pytest

from mnemorank._internal.sqlite import Database, Kind, UnusableFileError
from tests.helpers.forking import forked

KIND = Kind(7, 2, lambda connection: connection.execute("CREATE TABLE numbers (number)"))


@pytest.fixture
def database(tmp_path):
    with closing(Database(tmp_path / "file.db", KIND, timeout=5)) as database:
        yield database


def add(database, number):
    with database.transaction() as connection:
        connection.execute("INSERT INTO numbers VALUES (?)", (number,))


def numbers(database):
    with database.use() as connection:
        return sorted(number for (number,) in connection.execute("SELECT number FROM numbers"))


def test_only_the_owner_can_read_the_file(database):
    add(database, 1)
    files = list(database.path.parent.iterdir())
    assert len(files) == 3
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_failed_transaction_changes_nothing(database):
    def fail():
        with database.transaction() as connection:
            connection.execute("INSERT INTO numbers VALUES (1)")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert numbers(database) == []
    add(database, 2)
    assert numbers(database) == [2]


def test_threads_take_turns(database):
    threads = [threading.Thread(target=add, args=(database, number)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers(database) == list(range(20))


def test_a_forked_process_has_a_connection_of_its_own(database):
    add(database, 1)

    def use():
        add(database, 2)
        return numbers(database)

    assert forked(use) == [1, 2]
    add(database, 3)
    assert numbers(database) == [1, 2, 3]


def test_a_replaced_file_is_opened_again(database, tmp_path):
    add(database, 1)
    assert database.move_aside(tmp_path / "old.db")
    assert numbers(database) == []
    assert (tmp_path / "old.db").exists()


def test_files_of_other_programs_stay_as_they_are(tmp_path):
    path = tmp_path / "file.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE photos (name)")
    before = path.read_bytes()
    with closing(Database(path, KIND, timeout=5)) as database, pytest.raises(UnusableFileError):
        numbers(database)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_newer_and_missing_files_are_refused(database, tmp_path):
    add(database, 1)
    older = Kind(7, 1, KIND.create)
    for path, kind in ((database.path, older), (tmp_path / "none.db", KIND)):
        with (
            closing(Database(path, kind, timeout=5, may_create=False)) as other,
            pytest.raises(UnusableFileError),
        ):
            numbers(other)
    assert not (tmp_path / "none.db").exists()
