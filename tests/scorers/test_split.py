"""Split encoders: apart, together, cached."""

import numpy as np
import pytest

from mnemorank import Reranker
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import QueryTooLongError, ScorerError
from mnemorank.scorers import open_scorer
from mnemorank.scorers.split import SplitScorer
from mnemorank.scorers.states import State, StateCache
from tests.helpers.tiny_models import QUERY, TEXTS


@pytest.fixture
def scorer(split_onnx):
    scorer = open_scorer(load_artifact(split_onnx), threads=1)
    yield scorer
    scorer.close()


def test_scores_are_those_of_the_torch_model(split_torch, scorer):
    expected = open_scorer(load_artifact(split_torch))
    texts = TEXTS[:4]
    scores = scorer.score(QUERY, scorer.prepare(texts))
    reference = expected.score(QUERY, expected.prepare(texts))
    assert np.corrcoef(scores, reference)[0, 1] > 0.95


def test_the_combined_graph_scores_like_the_two_parts(split_onnx, scorer):
    from dataclasses import replace

    artifact = load_artifact(split_onnx)
    combined = open_scorer(replace(artifact, manifest=replace(artifact.manifest, family="onnx")))
    texts = TEXTS[:4]
    scores = scorer.score(QUERY, scorer.prepare(texts))
    assert np.corrcoef(scores, combined.score(QUERY, combined.prepare(texts)))[0, 1] > 0.95


def test_cached_states_give_the_same_scores(scorer):
    passages = scorer.prepare(TEXTS)
    first = scorer.score(QUERY, passages)
    assert list(scorer.score(QUERY, passages)) == list(first)
    assert list(scorer.score(QUERY, passages[::-1])) == list(first[::-1])


def test_a_memory_is_encoded_once_for_all_queries(scorer, monkeypatch):
    passages = scorer.prepare(TEXTS)
    scorer.states(passages)
    encoded = []
    encode = SplitScorer._encode
    monkeypatch.setattr(SplitScorer, "_encode", lambda self, *args: encoded.append(args) or encode(self, *args))
    scorer.score(QUERY, passages)
    scorer.score("who lives in lisbon", passages)
    assert [first_position for _, first_position in encoded] == [0, 0]


def test_without_a_cache_nothing_is_kept(split_onnx):
    scorer = open_scorer(load_artifact(split_onnx), cache_megabytes=0)
    assert np.isfinite(scorer.score(QUERY, scorer.prepare(TEXTS))).all()
    assert len(scorer.cache) == 0


def test_threads_do_not_change_scores(split_onnx, scorer):
    parallel = open_scorer(load_artifact(split_onnx), threads=3)
    assert list(parallel.score(QUERY, parallel.prepare(TEXTS))) == list(scorer.score(QUERY, scorer.prepare(TEXTS)))


def test_the_room_of_a_memory_does_not_depend_on_the_query(scorer):
    assert scorer.room("cat") == scorer.room(QUERY) == 47
    with pytest.raises(QueryTooLongError):
        scorer.room("cat " * 80)


def test_long_memories_are_not_truncated(scorer):
    with pytest.raises(ScorerError, match="exceeds the model's limit"):
        scorer.score("cat", scorer.prepare(["cat dog " * 40]))


def test_a_judged_pair_is_not_read_again(scorer):
    older, newer = scorer.prepare(["Ruby works at Zenith.", "Ruby works at Aurora now."])
    batches = []
    scorer.on_batch = batches.append
    first = scorer.replacement([(older, newer)])
    assert len(batches) == 1
    assert scorer.replacement([(older, newer)]) == first
    assert len(batches) == 1
    scorer.replacement([(newer, older)])
    assert len(batches) == 2


def test_replacement_depends_on_the_order(scorer):
    older, newer = scorer.prepare(TEXTS[:2])
    forward, backward = scorer.replacement([(older, newer), (newer, older)])
    assert forward != backward


def test_embeddings_have_length_one(scorer):
    assert np.linalg.norm(scorer.embed_query(QUERY)) == pytest.approx(1, abs=1e-3)


def test_closed_scorers_say_so(split_onnx):
    scorer = open_scorer(load_artifact(split_onnx))
    scorer.close()
    with pytest.raises(ScorerError, match="closed"):
        scorer.score(QUERY, scorer.prepare(["cat"]))


def test_reranker_with_a_split_encoder(split_onnx):
    with Reranker(split_onnx) as reranker:
        ranking = reranker.rerank(QUERY, TEXTS)
    assert len(ranking.results) == len(TEXTS)
    assert ranking.degraded is None


def test_states_survive_bytes(scorer):
    (state,) = scorer.states(scorer.prepare(TEXTS[:1]))
    copy = State.from_bytes(state.to_bytes(), width=32)
    assert np.array_equal(copy.codes, state.codes)
    assert np.array_equal(copy.scales, state.scales)
    assert np.array_equal(copy.embedding, state.embedding)
    assert State.from_bytes(state.to_bytes()[:-1], width=32) is None
    assert State.from_bytes(b"", width=32) is None


def test_the_cache_keeps_the_states_used_last(scorer):
    states = scorer.states(scorer.prepare(TEXTS[:3]))
    cache = StateCache(max_bytes=states[0].size + states[1].size + states[2].size - 1)
    cache.put({b"0": states[0], b"1": states[1]})
    cache.get([b"0"])
    cache.put({b"2": states[2]})
    assert set(cache.get([b"0", b"1", b"2"])) == {b"0", b"2"}
    assert cache.size <= cache.max_bytes
