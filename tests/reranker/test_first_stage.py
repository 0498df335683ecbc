"""The first stage: its sources, its weight and `max_scored`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mnemorank import Memory, Model, Options, Reranker
from mnemorank.artifact.manifest import PipelineWeights
from tests.helpers.requests import POOL, QUERY


def test_given_first_stage_scores_affect_the_order(folder):
    with Reranker(folder) as reranker:
        pool = [Memory("cat", first_stage_score=0.0), Memory("dog", first_stage_score=9.0)]
        ranking = reranker.rerank(QUERY, pool)
        assert [r.index for r in ranking] == [1, 0]
        assert ranking[0].score > ranking[1].score
        assert ranking[0].relevance == ranking[1].relevance
        none = reranker.rerank(QUERY, pool, options=Options(first_stage="none"))
        assert [r.index for r in none] == [1, 0]
        assert none[0].score == pytest.approx(none[1].score, rel=1e-5)


def test_bm25_is_used_without_scores(folder):
    with Reranker(folder) as reranker:
        explained = reranker.rerank(QUERY, ["cat", "ruby"], explain=True)
        assert explained[0].factors["first_stage"] > 0 > explained[1].factors["first_stage"]


def test_long_queries_reduce_bm25_but_not_given_scores(folder):
    query = QUERY + " and " + " ".join(f"chatter{n}" for n in range(30))
    given = [Memory(text, first_stage_score=float(n)) for n, text in enumerate(POOL)]
    with Reranker(folder) as reranker:

        def evidence(asked, pool):
            found = reranker.rerank(asked, pool, explain=True)
            return max(abs(result.factors["first_stage"]) for result in found)

        words = [f"{QUERY} {n}" if n % 2 else "nothing" for n in range(20)]
        assert 0 < evidence(query, words) < evidence(QUERY, words)
        assert evidence(query, given) == pytest.approx(evidence(QUERY, given))


def test_windowed_memories_increase_the_first_stage_weight(tiny_onnx):
    model = Model.load(tiny_onnx)
    weights = PipelineWeights(first_stage=0.5, first_stage_windowed=2.0)
    reranker = Reranker(replace(model, manifest=replace(model.manifest, weights=weights)))

    def weight(texts, **weights):
        memories = [{"text": text, "score": number} for number, text in enumerate(texts)]
        options = Options(weights=weights)
        results = reranker.rerank("Where does Ruby work?", memories, explain=True, options=options).results
        evidence = max(result.factors["first_stage"] for result in results)
        return evidence / (len(texts) / 10 * (len(texts) - 1) / 2 / np.std(np.arange(len(texts))))

    short, long = "Ruby works at Aurora.", "Ruby works at Aurora. " * 200
    assert weight([short] * 4) == pytest.approx(0.5)
    assert weight([long] * 4) == pytest.approx(2.0)
    assert weight([short, long] * 2) == pytest.approx(1.25)
    assert weight([long] * 4, first_stage_windowed=1.0) == pytest.approx(1.0)
    assert weight([short, long] * 2, first_stage_windowed=1.5) == pytest.approx(1.0)
    assert weight([short] * 4, first_stage=0.7) == pytest.approx(0.7)
    assert weight([short, long] * 2, first_stage=0.1, first_stage_windowed=0.3) == pytest.approx(0.2)


def test_cosines_have_a_weight_of_their_own(tiny_onnx):
    model = Model.load(tiny_onnx)
    weights = PipelineWeights(first_stage=0.5, first_stage_cosine=0.2)
    reranker = Reranker(replace(model, manifest=replace(model.manifest, weights=weights)))

    def weight(scale, **weights):
        memories = [{"text": f"Ruby works at Aurora {number}.", "score": scale * number} for number in range(1, 11)]
        results = reranker.rerank("Where?", memories, explain=True, options=Options(weights=weights)).results
        return max(result.factors["first_stage"] for result in results) / (4.5 / np.std(np.arange(10)))

    assert weight(0.1) == pytest.approx(0.2)
    assert weight(1.0) == pytest.approx(0.5)
    assert weight(0.1, first_stage_cosine=0.3) == pytest.approx(0.3)
    assert weight(0.1, first_stage=0.7) == pytest.approx(0.7)


def test_memories_beyond_max_scored_keep_the_first_stage_order(reranker):
    options = Options(first_stage="none", max_scored=2)
    ranking = reranker.rerank(QUERY, POOL, options=options)
    assert [r.index for r in ranking] == [1, 0, 2, 3]
    assert [r.scored for r in ranking] == [True, True, False, False]
    assert ranking.degraded is None


def test_max_scored_uses_bm25_as_first_stage(reranker):
    options = Options(first_stage="bm25", max_scored=1)
    ranking = reranker.rerank(QUERY, ["a dog", "the cat", "ruby work"], options=options)
    assert ranking[0].index == 2
    assert ranking[0].scored


def test_a_hundred_thousand_candidates(reranker):
    pool = [Memory("ruby" if i == 77_777 else f"cat {i}", first_stage_score=float(i == 77_777)) for i in range(100_000)]
    ranking = reranker.rerank(QUERY, pool, options=Options(max_scored=100), top_k=1)
    assert ranking[0].index == 77_777


def test_long_queries_reduce_an_overridden_weight_of_bm25_too(folder):
    query = QUERY + " and " + " ".join(f"chatter{n}" for n in range(30))
    with Reranker(folder) as reranker:

        def evidence(**weights):
            options = Options(weights=weights)
            ranking = reranker.rerank(query, ["ruby", *["cat"] * 11], explain=True, options=options)
            return max(result.factors["first_stage"] for result in ranking)

        assert evidence(first_stage=0.5) == pytest.approx(evidence())
        assert evidence(first_stage=1.0) == pytest.approx(2 * evidence())
