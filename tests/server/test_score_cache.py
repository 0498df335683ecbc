"""The score cache: same results, less work, bounded, and discarded with the model."""

from __future__ import annotations

import numpy as np
import pytest

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.resolve import load_artifact
from mnemorank.scorers.onnx import OnnxScorer
from mnemorank.server.score_cache import CachingScorer
from tests.server.test_model_slot import make_model

TEXTS = ["ruby works at aurora labs", "the cat", "ruby"]


@pytest.fixture
def scorer(tiny_onnx):
    inner = OnnxScorer(load_artifact(tiny_onnx), threads=1)
    inner.run_pairs = 0
    inner.on_batch = lambda batch: setattr(inner, "run_pairs", inner.run_pairs + batch.pairs)
    yield inner
    inner.close()


def test_a_size_of_zero_turns_the_cache_off(start):
    running = start(score_cache=0)
    for _ in range(2):
        answer = running.client.post("/rerank", json={"query": "ruby", "texts": TEXTS})
        assert answer.status_code == 200
    assert "mnemorank_cached_pairs_total 0.0" in running.client.get("/metrics").text
    assert not isinstance(running.app.state.slot.current.model.scorer, CachingScorer)


def test_a_pair_is_scored_once_and_scores_are_the_same(scorer):
    hits = []
    caching = CachingScorer(scorer, 100, hits.append)
    passages = scorer.prepare([*TEXTS, TEXTS[0]])
    expected = scorer.score("where does ruby work", passages)
    scorer.run_pairs = 0
    for _ in range(2):
        np.testing.assert_array_equal(caching.score("where does ruby work", passages), expected)
    assert scorer.run_pairs == 3
    assert hits == [1, 4]


def test_query_instruction_and_text_are_part_of_the_key(scorer):
    caching = CachingScorer(scorer, 100, lambda known: None)
    for query, instruction, text in (
        ("ruby", None, "ruby"), ("cat", None, "ruby"), ("ruby", "cat", "ruby"), ("ruby", None, "ruby cat"),
        ("rub", None, "yruby"),
    ):  # fmt: skip
        scorer.run_pairs = 0
        caching.score(query, scorer.prepare([text]), instruction=instruction)
        assert scorer.run_pairs == 1


def test_the_least_recently_used_score_is_dropped_first(scorer):
    caching = CachingScorer(scorer, 2, lambda known: None)
    for text in ("ruby", "cat", "ruby", "dog"):
        caching.score("ruby", scorer.prepare([text]))
    scorer.run_pairs = 0
    caching.score("ruby", scorer.prepare(["ruby", "dog"]))
    assert scorer.run_pairs == 0
    caching.score("ruby", scorer.prepare(["cat"]))
    assert scorer.run_pairs == 1


def test_pairs_that_a_deadline_left_unscored_are_not_cached(scorer):
    caching = CachingScorer(scorer, 100, lambda known: None)
    passages = scorer.prepare(TEXTS)
    assert np.isnan(caching.score("ruby", passages, deadline=Deadline(0))).all()
    assert np.isfinite(caching.score("ruby", passages)).all()


def test_results_and_usage_stay_the_same_and_a_swap_clears_the_cache(start, tiny_onnx, tmp_path):
    make_model(tiny_onnx, tmp_path / "other", 5.0)
    running = start(score_cache=1000, models_dir=tmp_path)
    body = {"query": "ruby", "documents": TEXTS}
    first, again = (running.client.post("/v1/rerank", json=body).json() for _ in range(2))
    assert first == again
    assert "mnemorank_cached_pairs_total 3.0" in running.client.get("/metrics").text
    assert running.client.post("/v1/models/swap", json={"model": "other"}).status_code == 200
    swapped = running.client.post("/v1/rerank", json=body).json()
    assert swapped["results"][0]["relevance_score"] < first["results"][0]["relevance_score"]


def test_the_cache_is_off_by_default(server):
    body = {"query": "ruby", "documents": TEXTS}
    for _ in range(2):
        assert server.client.post("/v1/rerank", json=body).status_code == 200
    assert "mnemorank_cached_pairs_total 0.0" in server.client.get("/metrics").text
