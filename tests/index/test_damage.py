"""Indexes whose file is damaged, locked, gone or on a full disk."""

import logging
import resource
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from mnemorank import ConflictError, MemoryIndex, StorageError
from mnemorank.index import store
from tests.helpers.forking import forked
from tests.index.test_index import CAT, DOG, WORK, ids

TEXT = "where does ruby work"


def change(path, statement):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@pytest.fixture
def ranking(index):
    """What an index returns before it is damaged."""
    index.add([WORK, CAT, DOG])
    ranking = index.search(TEXT, now="2025-01-01").to_dict()
    index.close()
    return ranking


def test_a_damaged_state_is_computed_again_and_replaced(split_onnx, path, ranking):
    change(path, "UPDATE states SET state = zeroblob(length(state))")
    with MemoryIndex.open(path, split_onnx) as index:
        assert index.search(TEXT, now="2025-01-01").to_dict() == ranking
        keys = [key for (key,) in sqlite3.connect(path).execute("SELECT key FROM passages")]
        assert len(index._store.states(keys, index._model_key)) == 3


def test_a_damaged_embedding_is_computed_again(split_onnx, path, ranking, caplog):
    change(path, "UPDATE passages SET embedding = zeroblob(length(embedding)) WHERE seq = 2")
    with MemoryIndex.open(path, split_onnx) as index, caplog.at_level(logging.WARNING):
        assert index.search(TEXT, now="2025-01-01").to_dict() == ranking
        assert len(index._vectors) == 3
        assert np.all(index._vectors.scales > 1e-9)
        assert len(caplog.records) == 1


def test_a_damaged_memory_is_left_out_and_can_be_replaced(split_onnx, path, ranking, caplog):
    change(path, "UPDATE memories SET record = replace(record, 'ruby', 'rubi') WHERE id = 'work'")
    with MemoryIndex.open(path, split_onnx) as index, caplog.at_level(logging.WARNING):
        assert sorted(ids(index.search(TEXT))) == ["cat", "dog"]
        assert caplog.records
        with pytest.raises(StorageError):
            index.get("work")
        index.add([WORK])
        assert index.search(TEXT, now="2025-01-01").to_dict()["results"][0]["text"] == ranking["results"][0]["text"]


def test_a_damaged_byte_spoils_only_its_own_memory(index, split_onnx, path):
    """It makes the text invalid UTF-8, which is an error of SQLite's module."""
    index.add([WORK, {**CAT, "text": "the cat lives in köln"}, DOG])
    index.close()
    content = path.read_bytes()
    record = content.index('köln"'.encode())
    path.write_bytes(content[: record + 2] + b"(" + content[record + 3 :])
    with MemoryIndex.open(path, split_onnx) as again:
        assert sorted(ids(again.search(TEXT))) == ["dog", "work"]
        with pytest.raises(StorageError):
            again.get("cat")
        again.add([CAT])
        assert sorted(ids(again.search(TEXT))) == ["cat", "dog", "work"]


@pytest.mark.parametrize("damaged", ["CAST('text' AS TEXT)", "CAST(x'ff' AS TEXT)"], ids=["text", "not UTF-8"])
def test_an_embedding_of_another_type_is_computed_again(split_onnx, path, ranking, damaged):
    change(path, f"UPDATE passages SET embedding = {damaged} WHERE seq = 2")
    change(path, f"UPDATE states SET state = {damaged}")
    with MemoryIndex.open(path, split_onnx) as index:
        assert index.search(TEXT, now="2025-01-01").to_dict() == ranking


@pytest.mark.parametrize("table", ["memories", "passages", "settings", "words_data"])
def test_a_malformed_file_is_an_error_and_stays(split_onnx, path, ranking, table):
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 8192 : page * 8192] = b"\xff" * 8192
    path.write_bytes(content)

    def use():
        with MemoryIndex.open(path, split_onnx) as index:
            index.search(TEXT)

    with pytest.raises(StorageError):
        use()
    assert path.stat().st_size == len(content)


def test_a_file_that_disappeared_is_an_error(index, path):
    index.add([WORK])
    for file in path.parent.glob("memories.db*"):
        file.unlink()
    with pytest.raises(StorageError):
        index.search(TEXT)
    with pytest.raises(StorageError):
        index.add([CAT])
    assert not path.exists()


def test_a_writer_waits_and_gives_up(index, path, monkeypatch):
    index.add([WORK])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert ids(index.search(TEXT)) == ["work"]
        monkeypatch.setattr(index._store._writer, "_timeout", 0.1)
        index._store._writer.disconnect()
        with pytest.raises(ConflictError) as raised:
            index.add([CAT])
        assert raised.value.code == "busy"
        with pytest.raises(ConflictError):
            index.delete(["work"])
    assert index.add([CAT]) == ["cat"]
    assert len(index) == 2


def test_a_full_disk_is_an_error_that_changes_nothing(index, path, split_onnx):
    index.add([WORK])
    size = path.stat().st_size

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 4096, size + 4096))
        try:
            index.add([{"id": str(number), "text": f"the cat {number} " * 50} for number in range(64)])
        except StorageError:
            return "refused"

    assert forked(fill) == "refused"
    assert ids(index.search(TEXT)) == ["work"]
    assert index.add([CAT]) == ["cat"]


def test_a_newer_schema_is_refused(index, path, split_onnx):
    index.close()
    change(path, f"PRAGMA user_version = {store._KIND.schema + 1}")
    with pytest.raises(StorageError):
        MemoryIndex.open(path, split_onnx)
