"""When a ranking says that nothing answers."""

from __future__ import annotations

from mnemorank import Memory, Moment, Options
from tests.helpers.requests import POOL, QUERY


def test_abstention(reranker):
    assert reranker.rerank(QUERY, ["the cat", "a dog"]).abstained
    assert not reranker.rerank(QUERY, POOL).abstained


def test_the_caller_may_say_when_to_abstain(reranker):
    assert not reranker.rerank(QUERY, ["the cat"], options=Options(abstain_below=0)).abstained
    assert not reranker.rerank(QUERY, [], options=Options(abstain_below=0)).abstained
    assert reranker.rerank(QUERY, ["the cat"], options=Options(abstain_below=0.9)).abstained
    assert reranker.rerank(QUERY, POOL, options=Options(abstain_below=1)).abstained


def test_what_was_dropped_does_not_keep_the_ranking_from_abstaining(reranker):
    old = Memory("ruby work now", id="1", metadata={"superseded_by": "2"})
    pool = [old, Memory("the cat", id="2")]
    assert not reranker.rerank(QUERY, pool).abstained
    assert reranker.rerank(QUERY, pool, options=Options(supersession="drop")).abstained


def test_what_had_not_begun_is_no_answer(reranker):
    later = Memory("ruby work now at aurora", occurred_start=Moment(2024))
    assert not reranker.rerank(QUERY, [later]).abstained
    ranking = reranker.rerank(QUERY, [later], as_of="2021")
    assert ranking.abstained
    assert ranking.scored_by is not None
