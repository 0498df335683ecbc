"""Scoring, failures of the model and deadlines."""

from __future__ import annotations

import asyncio
import math

import numpy as np

from mnemorank import Failover, Memory, Model, Options, Reranker, ScorerError
from mnemorank.model.lazy import LazyModel
from mnemorank.model.model import Scored
from tests.helpers.requests import POOL, QUERY


class Broken:
    """A real model that fails when it is asked."""

    def __init__(self, model):
        self.model = model
        self.manifest = model.manifest

    def score(self, *_, **__):
        raise ScorerError("the model's card is on fire")

    def count_tokens(self, memories):
        return self.model.count_tokens(memories)

    def close(self):
        pass


def test_score_returns_raw_scores(reranker):
    scores = reranker.score(QUERY, ["ruby now", "", "cat"])
    assert [s.raw_score for s in scores] == [1, None, -1]
    assert scores[1].relevance is None


def test_arerank_runs_concurrently(reranker):
    async def many():
        return await asyncio.gather(*(reranker.arerank(QUERY, POOL, top_k=1) for _ in range(50)))

    assert {ranking[0].index for ranking in asyncio.run(many())} == {1}


def test_a_failing_model_falls_back_to_the_first_stage_order(folder):
    model = Model.load(folder)
    pool = [Memory("cat", first_stage_score=0.1), Memory("dog", first_stage_score=0.9), Memory("cow")]
    ranking = Reranker(Broken(model)).rerank(QUERY, pool, top_k=2)
    assert [result.index for result in ranking] == [1, 0]
    assert ranking.degraded.kind == "model_failed"
    assert "on fire" in ranking.degraded.message
    assert all(r.relevance is None and r.score is None for r in ranking)
    assert ranking.scored_by is None
    assert ranking.as_dicts()[0]["score"] is None


def test_as_of_and_token_budget_work_without_scores(folder):
    model = Model.load(folder)
    pool = [
        Memory("ruby now", first_stage_score=0.9, occurred_start="2024-12"),
        Memory("cat dog cow", first_stage_score=0.8, occurred_start="2020"),
        Memory("dog", first_stage_score=0.7),
        Memory("cow", first_stage_score=0.6),
    ]
    budget = Options(token_budget=6)
    ranking = Reranker(Broken(model), options=budget).rerank(QUERY, pool, as_of="2024-08")
    assert [result.index for result in ranking] == [1, 2]
    assert not ranking.warnings
    late = Reranker(Broken(model)).rerank(QUERY, pool, as_of="2024-08")
    assert [result.index for result in late] == [1, 2, 3, 0]

    class Mute(Broken):
        def count_tokens(self, memories):
            raise ScorerError("no tokenizer")

    ranking = Reranker(Mute(model), options=budget).rerank(QUERY, pool)
    assert len(ranking) == 4
    assert ranking.warnings == ("token_budget: ignored, the tokens could not be counted: no tokenizer",)


def test_nan_scores_of_a_model_are_reported_as_incomplete(folder):
    class Blank(Broken):
        def score(self, query, memories, **_):
            return Scored(np.full(len(memories), np.nan), [None] * len(memories), self.manifest)

    reranker = Reranker(Blank(Model.load(folder)))
    for deadline_ms in (None, 60_000):
        ranking = reranker.rerank(QUERY, POOL, deadline_ms=deadline_ms)
        assert ranking.degraded.kind == "incomplete"
        assert "4 of 4" in ranking.degraded.message


def test_infinite_scores_of_a_model_count_as_missing(folder):
    class Infinite(Broken):
        def score(self, query, memories, **_):
            raw = np.array([math.inf, 1.0, -math.inf, 2.0])
            return Scored(raw, ["window"] * 4, self.manifest)

    ranking = Reranker(Infinite(Model.load(folder))).rerank(QUERY, POOL, options=Options(first_stage="none"))
    assert [(r.index, r.scored) for r in ranking] == [(3, True), (1, True), (0, False), (2, False)]
    assert ranking.degraded.kind == "incomplete"
    assert "2 of 4" in ranking.degraded.message


def test_a_token_budget_is_ignored_if_tokens_cannot_be_counted(folder):
    class Uncounted(Broken):
        def score(self, query, memories, **options):
            return self.model.score(query, memories, **options)

        def count_tokens(self, memories):
            raise ScorerError("no tokenizer")

    ranking = Reranker(Uncounted(Model.load(folder)), options=Options(token_budget=1)).rerank(QUERY, POOL)
    assert len(ranking) == 4
    assert ranking.degraded is None
    assert ranking[0].scored
    assert any("token_budget" in warning for warning in ranking.warnings)


def test_an_infinite_deadline_never_expires(folder):
    with Reranker(Failover([LazyModel(folder)], timeouts=[None])) as reranker:
        ranking = reranker.rerank(QUERY, POOL, deadline_ms=math.inf)
    assert ranking.degraded is None
    assert all(result.scored for result in ranking)


def test_unscored_memories_follow_in_first_stage_order(folder):
    class Slow:
        """The real model, scoring nothing after the deadline it is given has been cut short."""

        def __init__(self, model):
            self.model, self.manifest = model, model.manifest

        def score(self, query, memories, *, instruction=None, deadline=None):
            first = self.model.score(query, memories[:1])
            raw = np.concatenate([first.raw, np.full(len(memories) - 1, np.nan)])
            return Scored(raw, [None] * len(memories), self.manifest)

        def count_tokens(self, memories):
            return self.model.count_tokens(memories)

        def close(self):
            pass

    pool = [Memory(t, first_stage_score=s) for t, s in zip(POOL, [0.1, 0.2, 0.9, 0.5], strict=True)]
    ranking = Reranker(Slow(Model.load(folder))).rerank(QUERY, pool, deadline_ms=5)
    assert [r.index for r in ranking] == [2, 3, 1, 0]
    assert [r.scored for r in ranking] == [True, False, False, False]
    assert "3 of 4" in str(ranking.degraded)
    assert not ranking.abstained


def test_a_deadline_stops_scoring(reranker):
    """Far fewer are scored than there are; how long that takes is a matter for benchmarks."""
    pool = ["ruby work at aurora labs in berlin " * 5] * 20_000
    ranking = reranker.rerank(QUERY, pool, deadline_ms=50)
    assert "deadline" in str(ranking.degraded)
    assert len(ranking.results) == len(pool)
    assert sum(result.scored for result in ranking.results) < len(pool) / 2


def test_a_ranking_does_not_abstain_when_nothing_was_scored(reranker):
    ranking = reranker.rerank(QUERY, POOL, deadline_ms=0.0001)
    assert not ranking.abstained
    assert ranking.scored_by is None
    assert "deadline" in str(ranking.degraded)
