"""CrossEncoder: the interface of sentence-transformers."""

from __future__ import annotations

import copy
import logging

import numpy as np
import pytest
import torch

import mnemorank
from mnemorank import CrossEncoder, InputError, Reranker

QUERY = "Where does Ruby work?"
TEXTS = ["Tea.", "Ruby works at Aurora.", "Ruby's cat is called Miso."]
PAIRS = [(QUERY, text) for text in TEXTS]


@pytest.fixture(scope="module")
def model():
    return CrossEncoder()


def test_predict_returns_the_relevance_of_each_pair(model):
    scores = model.predict(PAIRS, batch_size=2, show_progress_bar=False, convert_to_numpy=True)

    assert isinstance(scores, np.ndarray)
    assert scores.dtype == np.float32
    assert scores == pytest.approx([score.relevance for score in Reranker().score(QUERY, TEXTS)])


def test_pairs_of_several_queries_keep_their_order(model):
    pairs = [("Who is Miso?", TEXTS[2]), PAIRS[1], ("Who is Miso?", TEXTS[0]), PAIRS[0]]
    scores = model.predict(pairs)

    assert scores[0] > scores[2]
    assert scores[1] > scores[3]
    assert [model.predict(pair) for pair in pairs] == pytest.approx(list(scores), abs=1e-6)


@pytest.mark.parametrize(
    "pairs", [[list(pair) for pair in PAIRS], tuple(PAIRS), np.array(PAIRS), [np.array(pair) for pair in PAIRS]]
)
def test_pairs_may_be_lists_tuples_and_arrays(model, pairs):
    assert model.predict(pairs) == pytest.approx(model.predict(PAIRS))
    assert model.predict(sentences=pairs) == pytest.approx(model.predict(PAIRS))


def test_tensors(model):
    expected = model.predict(PAIRS)
    tensor = model.predict(PAIRS, convert_to_tensor=True)
    assert isinstance(tensor, torch.Tensor)
    assert tensor.tolist() == pytest.approx(list(expected))
    tensors = model.predict(PAIRS, convert_to_numpy=False)
    assert [type(each) for each in tensors] == [torch.Tensor] * 3
    logits = model.predict(PAIRS, activation_fn=torch.nn.Identity())
    assert list(logits) == pytest.approx([score.raw_score for score in Reranker().score(QUERY, TEXTS)], rel=1e-5)
    assert model.predict(PAIRS, activation_fn=torch.nn.Sigmoid(), convert_to_tensor=True).max() < 1


def test_rank(model):
    ranking = model.rank(QUERY, TEXTS, top_k=2, return_documents=True)

    assert [entry["corpus_id"] for entry in ranking] == [1, 2]
    assert [entry["text"] for entry in ranking] == [TEXTS[1], TEXTS[2]]
    assert [entry["score"] for entry in ranking] == pytest.approx(sorted(model.predict(PAIRS), reverse=True)[:2])
    assert set(model.rank(QUERY, TEXTS)[0]) == {"corpus_id", "score"}
    assert model.rank(QUERY, []) == []


def test_memories_with_dates(model):
    old = {"text": "Ruby works at Zenith.", "occurred_start": "2019", "occurred_end": "2023"}
    current = {"text": "Ruby works at Zenith.", "occurred_start": "2024"}

    assert [entry["corpus_id"] for entry in model.rank("Where does Ruby work now?", [old, current])] == [1, 0]


def test_empty_inputs(model):
    assert model.predict([]).shape == (0,)
    assert list(model.predict([("", "a"), ("a", ""), (" ", " ")])) == [0, 0, 0]
    assert model.predict([("a", "")], activation_fn=torch.nn.Identity())[0] < -20


@pytest.mark.parametrize("inputs", [None, [("a",)], ["ab"], [("a", "b"), 5], [(1, "b")]])
def test_what_is_not_a_pair_is_an_error(model, inputs):
    with pytest.raises(InputError):
        model.predict(inputs)


def test_a_query_that_is_too_long_is_read_by_its_end(model, caplog):
    with caplog.at_level(logging.WARNING):
        score = model.predict(("tea " * 2000 + QUERY, TEXTS[1]))
    assert score > 0
    assert "too long" in caplog.text


def test_arguments_of_sentence_transformers(tiny_onnx):
    model = CrossEncoder(str(tiny_onnx), max_length=512, device="cpu", threads=1, probe=False)
    assert model.num_labels == 1
    ranking = model.rank("where does ruby work", ["ruby works", "the cat"], batch_size=8, show_progress_bar=True)
    assert ranking[0]["corpus_id"] == 0
    assert copy.deepcopy(model).rank("a cat", ["the cat"])[0]["corpus_id"] == 0
    model.close()


def test_it_is_imported_only_when_it_is_used():
    assert mnemorank.CrossEncoder is CrossEncoder
