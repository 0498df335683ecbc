"""Scorers: opening one, scoring pairs of different queries in a batch, wrapping one in another."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import MissingExtraError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.scorers import Scorer, open_scorer
from mnemorank.scorers.onnx import OnnxScorer
from mnemorank.scorers.protocol import Batch, ForwardingScorer, Pair, PairScorer

TEXTS = ["ruby works at aurora labs", "the cat", "ruby moved to berlin in march 2024 and works there now"]


@pytest.fixture
def scorer(tiny_onnx):
    scorer = OnnxScorer(load_artifact(tiny_onnx), threads=2)
    yield scorer
    scorer.close()


def test_a_missing_package_names_the_extra_to_install(tiny_onnx, monkeypatch):
    monkeypatch.setitem(sys.modules, "mnemorank.scorers.torch.classifier", None)  # importing it fails
    artifact = load_artifact(tiny_onnx)
    torch_artifact = dataclasses.replace(artifact, manifest=dataclasses.replace(artifact.manifest, family="torch"))
    with pytest.raises(MissingExtraError, match=r"mnemorank\[torch\]"):
        open_scorer(torch_artifact)


def test_a_closed_scorer_raises_a_scorer_error(tiny_onnx):
    model = Model.load(tiny_onnx)
    model.close()
    model.close()
    with pytest.raises(ScorerError, match="overlap"):
        model.score("ruby", [Memory("cat")])


def test_pairs_of_many_queries_score_like_each_query_alone(scorer):
    passages = scorer.prepare(TEXTS)
    queries = ["where does ruby work", "the cat", "berlin march"]
    mixed = [Pair(query, passage) for passage in passages for query in queries]
    alone = {query: scorer.score(query, passages) for query in queries}
    expected = [alone[query][i] for i in range(len(passages)) for query in queries]
    assert scorer.score_pairs(mixed).tolist() == expected
    assert len(set(expected)) > 2


def test_pairs_of_different_queries_share_a_batch_whose_size_is_reported(scorer):
    batches: list[Batch] = []
    scorer.on_batch = batches.append
    first, second = scorer.prepare(["the cat", "ruby works at aurora labs"])
    scorer.score_pairs([Pair("dog", first), Pair("ruby", second)])
    # [CLS] dog [SEP] the cat [SEP] and [CLS] ruby [SEP] ruby works at aurora labs [SEP]
    assert batches == [Batch(pairs=2, tokens=6 + 9, padded=18)]


def test_pairs_are_not_scored_after_the_deadline(scorer):
    (passage,) = scorer.prepare(["the cat"])
    assert np.isnan(scorer.score_pairs([Pair("cat", passage)], deadline=Deadline(0))).all()


def test_the_onnx_scorer_is_a_pair_scorer(scorer):
    assert isinstance(scorer, PairScorer)


def test_a_forwarding_scorer_behaves_like_the_scorer_it_wraps(tiny_onnx):
    inner = OnnxScorer(load_artifact(tiny_onnx))
    outer: Scorer = ForwardingScorer(inner)
    texts = ["ruby works in berlin", "the cat"]
    assert outer.name == inner.name
    assert [p.length for p in outer.prepare(texts)] == [p.length for p in inner.prepare(texts)]
    assert outer.room("ruby", "now") == inner.room("ruby", "now")
    assert outer.offsets(texts[0]) == inner.offsets(texts[0])
    assert outer.score("ruby cat", outer.prepare(texts)).tolist() == [0.0, 0.0]
    outer.close()
    with pytest.raises(ScorerError, match="closed"):
        inner.score("ruby", inner.prepare(texts))
