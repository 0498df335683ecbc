"""Selection through `rerank`."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mnemorank import Model, Options, Reranker
from mnemorank.artifact.manifest import Calibration
from tests.helpers.requests import POOL, QUERY


def test_floor_budget_and_diversity(reranker):
    def chosen(**selection):
        options = Options(first_stage="none", **selection)
        return [r.index for r in reranker.rerank(QUERY, [*POOL, "ruby work at aurora"], options=options)]

    assert chosen(floor=0.5) == [1, 3, 4]
    assert chosen(token_budget=8) == [1, 3]
    assert chosen(diversity=0.3)[:2] == [1, 0]
    assert chosen(replace_margin=0.3)[:1] == [0]


def test_diversity_keeps_newer_ties_first(reranker):
    pool = [
        {"text": "ruby work now", "occurred_start": "2019", "type": "event"},
        {"text": "ruby now work", "occurred_start": "2024", "type": "event"},
        "the cat",
    ]

    def chosen(**selection):
        options = Options(first_stage="none", **selection)
        return [r.index for r in reranker.rerank(QUERY, pool, options=options)]

    assert chosen(tie_margin=0.01) == chosen(tie_margin=0.01, diversity=1) == [1, 0, 2]
    assert chosen(tie_margin=0.01, diversity=0.9)[0] == 1
    assert chosen(replace_margin=0.3, diversity=1) == chosen(replace_margin=0.3)


def test_floor_drops_unscored_memories(reranker):
    options = Options(max_scored=1, floor=0.0)
    assert [result.index for result in reranker.rerank(QUERY, POOL, options=options)] == [0]


@given(st.lists(st.text(max_size=40), max_size=6), st.none() | st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_each_memory_is_returned_at_most_once(reranker, pool, top_k):
    ranking = reranker.rerank(QUERY, pool, top_k=top_k)
    indexes = [r.index for r in ranking]
    assert len(set(indexes)) == len(indexes) == min(len(pool), top_k or len(pool))
    assert [r.rank for r in ranking] == list(range(1, len(indexes) + 1))
    scores = [r.score for r in ranking if r.scored]
    assert scores == sorted(set(scores), reverse=True)


def test_diversity_keeps_unscored_memories_last(reranker):
    pool = ["ruby work now", "ruby work now too", "ruby work now here", "   ", "ruby work now again"]
    options = Options(first_stage="none", diversity=0.1)
    ranking = reranker.rerank(QUERY, pool, options=options)
    assert ranking[-1].index == 3
    assert [r.scored for r in ranking] == [True, True, True, True, False]


def test_floor_is_ignored_when_nothing_was_scored(reranker):
    options = Options(floor=0.05)
    ranking = reranker.rerank(
        QUERY, [{"text": "ruby work", "score": i} for i in range(4)], deadline_ms=1e-4, options=options
    )
    assert "deadline" in str(ranking.degraded)
    assert [result.index for result in ranking] == [3, 2, 1, 0]


def test_diversity_ignores_dropped_memories(reranker):
    pool = [
        {"text": "ruby work at aurora now", "key": "job", "occurred_start": "2019"},
        {"text": "ruby work at berlin now", "key": "job", "occurred_start": "2024"},
        "ruby now",
        "the cat",
    ]

    def chosen(pool, top_k=None):
        options = Options(first_stage="none", supersession="drop", diversity=0.5)
        return [result.text for result in reranker.rerank(QUERY, pool, top_k=top_k, options=options)]

    assert chosen(pool) == chosen(pool[1:])
    assert chosen(pool, top_k=2) == chosen(pool)[:2]


def test_saturated_probabilities_keep_their_order(reranker):
    pool = [
        {"text": "ruby work", "score": score, "occurred_start": day}
        for score, day in ((10, 2020), (9, 2021), (8.5, 2022))
    ]
    options = Options(weights={"first_stage": 60}, supersession="off")
    assert [result.index for result in reranker.rerank(QUERY, pool, options=options)] == [0, 1, 2]


def test_scores_that_round_to_zero_stay_positive_and_ordered(folder):
    manifest = replace(Model.load(folder).manifest, calibration=Calibration(1.0, -2000.0))
    with Reranker(folder) as usual, Reranker(replace(Model.load(folder), manifest=manifest)) as hopeless:
        ranking = hopeless.rerank(QUERY, POOL)
        assert [result.index for result in ranking] == [result.index for result in usual.rerank(QUERY, POOL)]
    scores = [np.float32(result.score) for result in ranking]
    assert all(first > second > 0 for first, second in pairwise(scores))
