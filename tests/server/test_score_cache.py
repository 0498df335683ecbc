"""Remembered scores: the same answers, less work, and nothing kept beyond the limit or the model."""

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


def test_a_cache_of_none_is_off(start):
    running = start(score_cache=0)
    for _ in range(2):
        answer = running.client.post("/rerank", json={"query": "ruby", "texts": TEXTS})
        assert answer.status_code == 200
    assert "mnemorank_cached_pairs_total 0.0" in running.client.get("/metrics").text
    assert not isinstance(running.app.state.slot.current.model.scorer, CachingScorer)


def test_a_pair_is_scored_once_and_scores_are_the_same(scorer):
    told = []
    remembering = CachingScorer(scorer, 100, told.append)
    passages = scorer.prepare([*TEXTS, TEXTS[0]])
    expected = scorer.score("where does ruby work", passages)
    scorer.run_pairs = 0
    for _ in range(2):
        np.testing.assert_array_equal(remembering.score("where does ruby work", passages), expected)
    assert scorer.run_pairs == 3
    assert told == [1, 4]


def test_query_instruction_and_text_all_count(scorer):
    remembering = CachingScorer(scorer, 100, lambda known: None)
    for query, instruction, text in (
        ("ruby", None, "ruby"), ("cat", None, "ruby"), ("ruby", "cat", "ruby"), ("ruby", None, "ruby cat"),
        ("rub", None, "yruby"),
    ):  # fmt: skip
        scorer.run_pairs = 0
        remembering.score(query, scorer.prepare([text]), instruction=instruction)
        assert scorer.run_pairs == 1


def test_the_oldest_is_forgotten_first(scorer):
    remembering = CachingScorer(scorer, 2, lambda known: None)
    for text in ("ruby", "cat", "ruby", "dog"):
        remembering.score("ruby", scorer.prepare([text]))
    scorer.run_pairs = 0
    remembering.score("ruby", scorer.prepare(["ruby", "dog"]))
    assert scorer.run_pairs == 0
    remembering.score("ruby", scorer.prepare(["cat"]))
    assert scorer.run_pairs == 1


def test_what_a_deadline_left_unscored_is_not_remembered(scorer):
    remembering = CachingScorer(scorer, 100, lambda known: None)
    passages = scorer.prepare(TEXTS)
    assert np.isnan(remembering.score("ruby", passages, deadline=Deadline(0))).all()
    assert np.isfinite(remembering.score("ruby", passages)).all()


def test_served_answers_and_usage_do_not_change_and_a_swap_forgets(start, tiny_onnx, tmp_path):
    make_model(tiny_onnx, tmp_path / "other", 5.0)
    running = start(score_cache=1000, models_dir=tmp_path)
    body = {"query": "ruby", "documents": TEXTS}
    first, again = (running.client.post("/v1/rerank", json=body).json() for _ in range(2))
    assert first == again
    assert "mnemorank_cached_pairs_total 3.0" in running.client.get("/metrics").text
    assert running.client.post("/v1/models/swap", json={"model": "other"}).status_code == 200
    swapped = running.client.post("/v1/rerank", json=body).json()
    assert swapped["results"][0]["relevance_score"] < first["results"][0]["relevance_score"]


def test_without_the_setting_everything_is_scored(server):
    body = {"query": "ruby", "documents": TEXTS}
    for _ in range(2):
        assert server.client.post("/v1/rerank", json=body).status_code == 200
    assert "mnemorank_cached_pairs_total 0.0" in server.client.get("/metrics").text
