"""The states of a split model on disk."""

import logging
import multiprocessing
import sqlite3
import threading
from contextlib import closing

import numpy as np
import pytest

from mnemorank.errors import InputError
from mnemorank.scorers.state_file import StateFile
from mnemorank.scorers.states import State
from tests.helpers.forking import forked

MODEL = "aaaa"


def make_state(number, tokens=5, width=8):
    generator = np.random.default_rng(number)
    return State(
        generator.integers(-127, 128, (tokens, width)).astype(np.int8),
        generator.random(tokens).astype(np.float16),
        generator.random(width).astype(np.float16),
    )


def key(number):
    return number.to_bytes(16, "big")


def states(*numbers, **shape):
    return {key(number): make_state(number, **shape) for number in numbers}


def same(found, expected):
    return found.keys() == expected.keys() and all(
        found[key].to_bytes() == state.to_bytes() for key, state in expected.items()
    )


@pytest.fixture
def file(tmp_path):
    with closing(StateFile(tmp_path, MODEL)) as file:
        yield file


def test_states_outlive_the_process(tmp_path, file):
    assert file.store(states(1, 2, 3))
    file.close()
    with closing(StateFile(tmp_path, MODEL)) as again:
        assert same(again.get([key(1), key(3), key(9)]), states(1, 3))


def test_states_are_written_in_the_background(tmp_path, file):
    for number in range(600):
        file.put(states(number))
    file.close()
    with closing(StateFile(tmp_path, MODEL)) as again:
        assert same(again.get([key(number) for number in range(600)]), states(*range(600)))


def test_states_of_another_model_are_never_used(tmp_path, file):
    file.store(states(1))
    with closing(StateFile(tmp_path, "bbbb")) as other:
        assert other.get([key(1)]) == {}
        other.store({key(1): make_state(2)})
    assert same(file.get([key(1)]), states(1))


def test_another_process_sees_new_states(tmp_path, file):
    file.get([key(1)])
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=store_in_another_process, args=(tmp_path,))
    process.start()
    process.join()
    assert same(file.get([key(1)]), states(1))


def store_in_another_process(folder):
    with closing(StateFile(folder, MODEL)) as file:
        assert file.store(states(1))


def test_forked_processes_share_the_file(tmp_path, file):
    file.store(states(1))
    file.put(states(2))

    def use():
        file.put(states(3))
        found = len(file.get([key(1)]))
        file.close()
        return found

    assert forked(use) == 1
    file.store(states(4))
    file.close()
    with closing(StateFile(tmp_path, MODEL)) as again:
        assert same(again.get([key(number) for number in range(6)]), states(1, 2, 3, 4))


@pytest.mark.parametrize(
    ("column", "damage"),
    [
        ("state", "zeroblob(length(state))"),
        ("state", "CAST(x'ff' AS TEXT)"),
        ("crc32", "crc32 + 1"),
        ("width", "width + 1"),
        ("width", "'wide'"),
    ],
)
def test_a_damaged_state_is_missing_and_replaced(tmp_path, file, column, damage):
    file.store(states(1, 2))
    with closing(sqlite3.connect(file.path)) as connection, connection:
        connection.execute(f"UPDATE states SET {column} = {damage} WHERE key = ?", (key(1),))
    assert same(file.get([key(1), key(2)]), states(2))
    file.store(states(1))
    assert same(file.get([key(1), key(2)]), states(1, 2))


@pytest.mark.parametrize("content", [b"not a database" * 1000, b""], ids=["another format", "empty"])
def test_a_file_that_is_not_a_database_is_begun_anew(tmp_path, content, caplog):
    (tmp_path / "states.db").write_bytes(content)
    with caplog.at_level(logging.WARNING), closing(StateFile(tmp_path, MODEL)) as file:
        assert file.store(states(1))
        assert same(file.get([key(1)]), states(1))
    assert (tmp_path / "states.db.damaged").exists() == bool(content)
    assert bool(caplog.records) == bool(content)


@pytest.mark.parametrize("page", [0, 1, 2, 7, 20])
def test_a_malformed_database_is_begun_anew(tmp_path, page):
    with closing(StateFile(tmp_path, MODEL)) as file:
        file.store(states(*range(50), tokens=200))
    path = tmp_path / "states.db"
    content = bytearray(path.read_bytes())
    content[page * 8192 + 100 : (page + 1) * 8192] = b"\xff" * (8192 - 100)
    path.write_bytes(content)
    check_use_after_damage(tmp_path)


@pytest.mark.parametrize("size", [1, 4000, 8192, 100_000, 150_001])
def test_a_truncated_database_is_begun_anew(tmp_path, size):
    with closing(StateFile(tmp_path, MODEL)) as file:
        file.store(states(*range(50), tokens=200))
    path = tmp_path / "states.db"
    assert path.stat().st_size > size
    with path.open("r+b") as stream:
        stream.truncate(size)
    check_use_after_damage(tmp_path)


def check_use_after_damage(folder):
    """What is returned is right, and all states can be stored again."""
    expected = states(*range(50), tokens=200)
    with closing(StateFile(folder, MODEL)) as file:
        for number, state in expected.items():
            found = file.get([number])
            assert not found or same(found, {number: state})
        assert file.store(expected)
        assert same(file.get(list(expected)), expected)


def test_damage_is_noticed_by_all_who_use_the_file(tmp_path):
    with closing(StateFile(tmp_path, MODEL)) as first, closing(StateFile(tmp_path, MODEL)) as second:
        first.store(states(1))
        assert same(second.get([key(1)]), states(1))
        first._begin_anew(damage_error(), first._reader)
        assert first.get([key(1)]) == second.get([key(1)]) == {}
        second.store(states(2))
        assert same(first.get([key(2)]), states(2))


def damage_error():
    error = sqlite3.DatabaseError("database disk image is malformed")
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


def test_a_database_of_another_program_is_refused(tmp_path):
    with closing(sqlite3.connect(tmp_path / "states.db")) as connection:
        connection.execute("CREATE TABLE photos (name)")
    with pytest.raises(InputError) as raised:
        StateFile(tmp_path, MODEL)
    assert (raised.value.field, raised.value.code) == ("states", "unusable")
    with closing(sqlite3.connect(tmp_path / "states.db")) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("photos",)]


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError) as raised:
        StateFile(tmp_path / "file", MODEL)
    assert raised.value.field == "states"


def test_the_size_is_bounded_and_the_oldest_go_first(tmp_path):
    size = make_state(0, tokens=1000, width=32).size
    with closing(StateFile(tmp_path, MODEL, max_bytes=40 * size)) as file:
        for first in range(0, 100, 10):
            assert file.store(states(*range(first, first + 10), tokens=1000, width=32))
        kept = sorted(file.get([key(number) for number in range(100)]))
        assert kept == [key(number) for number in range(100 - len(kept), 100)]
        assert 20 <= len(kept) <= 40
    assert file.path.stat().st_size <= 40 * size


def test_a_lower_bound_shrinks_the_file(tmp_path):
    with closing(StateFile(tmp_path, MODEL)) as file:
        file.store(states(*range(500), tokens=1000, width=32))
    assert file.path.stat().st_size > 10_000_000
    with closing(StateFile(tmp_path, MODEL, max_bytes=1_000_000)) as file:
        file.store(states(501, tokens=1000, width=32))
        assert same(file.get([key(501)]), states(501, tokens=1000, width=32))
    assert file.path.stat().st_size <= 1_000_000


def test_the_file_remembers_its_bound(tmp_path):
    StateFile(tmp_path, MODEL, max_bytes=1_000_000).close()
    with closing(StateFile(tmp_path, "another model")) as file:
        file.store(states(*range(100), tokens=1000, width=32))
    assert file.path.stat().st_size <= 1_000_000


def test_a_writer_that_waits_too_long_does_not_store(tmp_path, caplog):
    with closing(StateFile(tmp_path, MODEL, write_timeout=0.1)) as file, closing(lock(file.path)) as other:
        with caplog.at_level(logging.WARNING):
            assert not file.store(states(1))
            assert not file.store(states(1))
        assert len(caplog.records) == 1
        assert file.get([key(1)]) == {}
        other.rollback()
        assert file.store(states(1))


def lock(path):
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_writers_wait_for_each_other(tmp_path):
    with closing(StateFile(tmp_path, MODEL)) as first, closing(StateFile(tmp_path, MODEL)) as second:
        threads = [
            threading.Thread(target=lambda file=file, n=n: file.store(states(n)))
            for n in range(40)
            for file in ([first, second][n % 2],)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert same(first.get([key(n) for n in range(40)]), states(*range(40)))


def test_reading_does_not_wait_for_a_writer(file):
    file.store(states(1))
    with closing(lock(file.path)):
        assert same(file.get([key(1)]), states(1))


def test_a_closed_file_returns_nothing_and_stores_nothing(file):
    file.store(states(1))
    file.close()
    file.put(states(2))
    assert file.get([key(1)]) == {}
    assert not file.store(states(2))


def test_the_file_is_created_again_after_it_was_deleted(tmp_path, file):
    file.store(states(1))
    for path in tmp_path.iterdir():
        path.unlink()
    assert file.get([key(1)]) == {}
    assert file.store(states(2))
    assert same(file.get([key(2)]), states(2))
