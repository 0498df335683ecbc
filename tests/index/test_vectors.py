"""Embeddings in memory."""

import numpy as np

from mnemorank.index.vectors import Vectors


def make(count, width=64, seed=0):
    rows = np.random.default_rng(seed).standard_normal((count, width))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def test_cosines_are_those_of_float32():
    rows = make(10_000)
    vectors = Vectors.empty().extend(range(10_000), range(10_000), rows)
    query = make(1, seed=1)[0].astype(np.float32)
    assert np.abs(vectors.cosines(query) - rows.astype(np.float32) @ query).max() < 0.01


def test_memories_come_in_the_order_of_their_best_passage():
    rows = make(3000)
    owners = np.arange(3000) // 3
    vectors = Vectors.empty().extend(range(3000), owners, rows)
    query = rows[100].astype(np.float32)
    order = list(vectors.best_memories(query))
    assert sorted(order) == list(range(1000))
    best = vectors.cosines(query).reshape(1000, 3).max(axis=1)
    assert order[0] == 33
    assert list(best[order]) == sorted(best, reverse=True)


def test_rows_are_added_and_removed():
    vectors = Vectors.empty().extend([1, 2, 5], [10, 10, 11], make(3))
    vectors = vectors.extend([7], [12], make(1, seed=2)).keep([2, 7, 9])
    assert list(vectors.passages) == [2, 7]
    assert list(vectors.memories) == [10, 12]
    assert len(vectors) == len(vectors.cosines(make(1)[0].astype(np.float32))) == 2


def test_nothing_is_found_among_nothing():
    assert list(Vectors.empty().best_memories(make(1, width=0)[0].astype(np.float32))) == []
