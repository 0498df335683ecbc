"""Abstention."""

from __future__ import annotations

from mnemorank import Memory, Moment, Options
from tests.helpers.requests import POOL, QUERY


def test_abstains_when_nothing_is_relevant(reranker):
    assert reranker.rerank(QUERY, ["the cat", "a dog"]).abstained
    assert not reranker.rerank(QUERY, POOL).abstained


def test_abstain_below_overrides_the_model(reranker):
    assert not reranker.rerank(QUERY, ["the cat"], options=Options(abstain_below=0)).abstained
    assert not reranker.rerank(QUERY, [], options=Options(abstain_below=0)).abstained
    assert reranker.rerank(QUERY, ["the cat"], options=Options(abstain_below=0.9)).abstained
    assert reranker.rerank(QUERY, POOL, options=Options(abstain_below=1)).abstained


def test_dropped_memories_do_not_prevent_abstention(reranker):
    old = Memory("ruby work now", id="1", metadata={"superseded_by": "2"})
    pool = [old, Memory("the cat", id="2")]
    assert not reranker.rerank(QUERY, pool).abstained
    assert reranker.rerank(QUERY, pool, options=Options(supersession="drop")).abstained


def test_memories_after_as_of_do_not_prevent_abstention(reranker):
    later = Memory("ruby work now at aurora", occurred_start=Moment(2024))
    assert not reranker.rerank(QUERY, [later]).abstained
    ranking = reranker.rerank(QUERY, [later], as_of="2021")
    assert ranking.abstained
    assert ranking.scored_by is not None
