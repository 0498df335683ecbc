"""Supersession through `rerank`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mnemorank import Memory, Moment, Options
from tests.helpers.requests import QUERY

OLD_AND_NEW = [
    {"text": "ruby work now", "occurred_start": "2019", "key": "job"},
    {"text": "ruby work", "occurred_start": "2024", "key": "job"},
]


def test_similar_memories_are_demoted_and_flagged_on_request(reranker):
    old = Memory(
        "ruby has work now, a plan at zenith", type="world", occurred_start=Moment(2019), occurred_end=Moment(2023)
    )
    new = Memory("ruby has work, a plan at aurora", type="world", occurred_start=Moment(2024))
    similar = Options(supersede_similar=True)
    ranking = reranker.rerank(QUERY, [old, new], options=similar)
    assert [r.index for r in ranking] == [1, 0]
    assert ranking[1].stale
    assert ranking[1].superseded_by == 1
    asked = "where did ruby work before now"
    past = reranker.rerank(asked, [old, new], options=replace(similar, detect_past_questions=True))
    assert past[0].index == 0
    assert past[0].stale
    assert reranker.rerank(asked, [old, new], options=similar)[0].index == 1
    assert not any(result.stale for result in reranker.rerank(QUERY, [old, new]))
    off = reranker.rerank(QUERY, [old, new], options=Options(first_stage="none", supersession="off"))
    assert [(r.index, r.stale) for r in off] == [(0, False), (1, False)]


def test_supersession_off_applies_with_as_of(reranker):
    later = {"text": "ruby work now at last", "occurred_start": "2026"}
    options = Options(first_stage="none", supersession="off")
    ranking = reranker.rerank(QUERY, [*OLD_AND_NEW, later], as_of="2025", options=options)
    assert [(r.index, r.stale) for r in ranking] == [(0, False), (1, False), (2, False)]


def test_superseded_memories_are_dropped_before_top_k(reranker):
    pool = [*OLD_AND_NEW, "the cat"]
    options = Options(first_stage="none", supersession="drop")
    assert [r.index for r in reranker.rerank(QUERY, pool, top_k=2, options=options)] == [1, 2]
    past = replace(options, detect_past_questions=True)
    assert 0 in [r.index for r in reranker.rerank("where did ruby work", pool, options=past)]
    demoted = reranker.rerank(QUERY, pool, options=Options(first_stage="none", supersession="demote"))
    assert [(r.index, r.stale_because) for r in demoted] == [(1, None), (0, "key"), (2, None)]


def test_memories_that_are_only_similar_are_never_dropped(reranker):
    old = Memory("ruby work now at zenith", occurred_start=Moment(2019))
    new = Memory("ruby work at aurora", occurred_start=Moment(2024))
    options = Options(first_stage="none", supersession="drop", supersede_similar=True)
    ranking = reranker.rerank(QUERY, [old, new], options=options)
    assert [(r.index, r.stale_because) for r in ranking] == [(1, None), (0, "similar")]


def test_as_of_restores_an_earlier_state(reranker):
    old = Memory("ruby work at zenith", type="world", occurred_start=Moment(2019), occurred_end=Moment(2023))
    new = Memory("ruby work at aurora now", type="world", occurred_start=Moment(2024))
    ranking = reranker.rerank(QUERY, [old, new], as_of="2021")
    assert [r.index for r in ranking] == [0, 1]
    assert not ranking[0].stale


@pytest.mark.parametrize("selection", [{}, {"diversity": 0.9}, {"replace_margin": 0.1}])
def test_selection_respects_supersession(reranker, selection):
    options = Options(first_stage="none", **selection)
    assert [r.index for r in reranker.rerank(QUERY, OLD_AND_NEW, options=options)] == [1, 0]
    assert [r.index for r in reranker.rerank(QUERY, OLD_AND_NEW, options=options, as_of="2020")] == [0, 1]


def test_a_dropped_memory_still_demotes_what_it_replaced(reranker):
    oldest = Memory("ruby work now at zenith", occurred_start="2015")
    older = Memory("ruby work at zenith labs", occurred_start="2019", id="older")
    newest = Memory("a dog now", occurred_start="2024", metadata={"supersedes": "older"})
    for mode, expected in (("demote", [2, 1, 0]), ("drop", [2, 0])):
        options = Options(first_stage="none", supersession=mode, supersede_similar=True)
        ranking = reranker.rerank(QUERY, [oldest, older, newest], options=options)
        assert [result.index for result in ranking] == expected
        assert ranking[-1].stale_because == "similar"
