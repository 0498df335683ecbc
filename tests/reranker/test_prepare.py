"""Prepared memories: the same rankings, for all processes that share a folder."""

import asyncio
import pickle
import sqlite3
import time
from contextlib import closing

import pytest

from mnemorank import InputError, Options, Reranker
from tests.helpers.forking import forked
from tests.model.test_prepare import MEMORIES, QUERIES

OPTIONS = Options(first_stage="bm25", diversity=0.8, weights={"rescoring": 0.5, "first_stage": 0.5})


def rankings(reranker):
    return [
        reranker.rerank(query, MEMORIES, now="2025-05-01", explain=True, options=OPTIONS).to_dict() for query in QUERIES
    ]


def test_rankings_are_the_same_prepared_or_not(split_onnx, tmp_path):
    with Reranker(split_onnx, cache_megabytes=0) as unprepared:
        expected = rankings(unprepared)
    with Reranker(split_onnx, states=tmp_path) as prepared:
        assert prepared.prepare(MEMORIES).new
        assert rankings(prepared) == expected
    with Reranker(split_onnx, states=tmp_path) as later:
        assert later.prepare(MEMORIES).new == 0
        assert rankings(later) == expected


def test_any_records_can_be_prepared(split_onnx, tmp_path):
    records = ["ruby works", {"content": "the cat", "date": "2024-01-01"}, ("a dog", 0.5)]
    with Reranker(split_onnx, states=tmp_path) as reranker:
        assert asyncio.run(reranker.aprepare(records)).new == 3
        assert reranker.prepare([{"note": "ruby works"}], field="note").known == 1
        with pytest.raises(InputError) as raised:
            reranker.prepare(["ruby", {"text": 5}])
        assert raised.value.field == "memories.1.text"


def test_models_that_are_not_split_are_refused(tmp_path, folder):
    with pytest.raises(InputError) as raised:
        Reranker(folder, states=tmp_path)
    assert (raised.value.field, raised.value.code) == ("states", "not_split")
    with Reranker(folder) as reranker, pytest.raises(InputError) as raised:
        reranker.prepare(MEMORIES)
    assert raised.value.code == "not_split"


def test_objects_that_score_are_refused(tmp_path, split_onnx):
    class Constant:
        def score(self, query, memories, **_):
            raise AssertionError

    with pytest.raises(InputError) as raised:
        Reranker(Constant(), states=tmp_path)
    assert raised.value.field == "states"
    with pytest.raises(InputError) as raised:
        Reranker(Constant()).prepare(MEMORIES)
    assert raised.value.code == "not_split"


def test_pickles_with_its_folder(split_onnx, tmp_path):
    with Reranker(split_onnx, states=tmp_path) as reranker:
        reranker.prepare(MEMORIES[:2])
        with pickle.loads(pickle.dumps(reranker)) as copy:
            assert copy.prepare(MEMORIES[:2]).known == 2
        assert str(tmp_path) in repr(reranker)


def test_forked_processes_prepare_and_rank(split_onnx, tmp_path):
    with Reranker(split_onnx, states=tmp_path) as reranker:
        reranker.prepare(MEMORIES[:2])
        expected = rankings(reranker)

        def use():
            prepared = reranker.prepare(MEMORIES)
            return [prepared.new, prepared.known, rankings(reranker) == expected]

        new, known, is_same = forked(use)
        assert new > 0
        assert (new + known, is_same) == (len(MEMORIES), True)
        assert reranker.prepare(MEMORIES).new == 0


@pytest.mark.parametrize("damage", ["locked", "deleted", "malformed"])
def test_a_broken_file_does_not_change_a_ranking(split_onnx, tmp_path, damage):
    with Reranker(split_onnx, cache_megabytes=0) as unprepared:
        expected = rankings(unprepared)
    with Reranker(split_onnx, states=tmp_path, cache_megabytes=0) as reranker:
        reranker.prepare(MEMORIES[:3])
        path = tmp_path / "states.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            if damage == "locked":
                connection.execute("BEGIN EXCLUSIVE")
            elif damage == "deleted":
                path.unlink()
            else:
                with path.open("r+b") as stream:
                    stream.write(b"\0" * 4096)
            assert rankings(reranker) == expected


def test_a_locked_file_does_not_exceed_a_deadline(split_onnx, tmp_path):
    """The lock is held for longer than the test may take: nothing may wait for it."""
    with (
        Reranker(split_onnx, states=tmp_path) as reranker,
        closing(sqlite3.connect(tmp_path / "states.db", isolation_level=None)) as connection,
    ):
        connection.execute("BEGIN EXCLUSIVE")
        started = time.monotonic()
        ranking = reranker.rerank("ruby", MEMORIES[:4], deadline_ms=5000)
        waited = time.monotonic() - started
        connection.execute("ROLLBACK")
    assert ranking.degraded is None
    assert waited < 5
