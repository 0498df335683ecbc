"""Pairs of different queries in one batch."""

from __future__ import annotations

import numpy as np
import pytest

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.resolve import load_artifact
from mnemorank.scorers.onnx import OnnxScorer
from mnemorank.scorers.protocol import Batch, Pair, PairScorer

TEXTS = ["ruby works at aurora labs", "the cat", "ruby moved to berlin in march 2024 and works there now"]


@pytest.fixture
def scorer(tiny_onnx):
    scorer = OnnxScorer(load_artifact(tiny_onnx), threads=2)
    yield scorer
    scorer.close()


def test_pairs_of_many_queries_score_as_each_query_alone(scorer):
    passages = scorer.prepare(TEXTS)
    queries = ["where does ruby work", "the cat", "berlin march"]
    mixed = [Pair(query, passage) for passage in passages for query in queries]
    alone = {query: scorer.score(query, passages) for query in queries}
    expected = [alone[query][i] for i in range(len(passages)) for query in queries]
    assert scorer.score_pairs(mixed).tolist() == expected
    assert len(set(expected)) > 2


def test_pairs_of_different_queries_share_a_batch_and_its_size_is_reported(scorer):
    batches: list[Batch] = []
    scorer.on_batch = batches.append
    first, second = scorer.prepare(["the cat", "ruby works at aurora labs"])
    scorer.score_pairs([Pair("dog", first), Pair("ruby", second)])
    # [CLS] dog [SEP] the cat [SEP] and [CLS] ruby [SEP] ruby works at aurora labs [SEP]
    assert batches == [Batch(pairs=2, tokens=6 + 9, padded=18)]


def test_a_deadline_that_has_passed_leaves_pairs_unscored(scorer):
    (passage,) = scorer.prepare(["the cat"])
    assert np.isnan(scorer.score_pairs([Pair("cat", passage)], deadline=Deadline(0))).all()


def test_the_onnx_scorer_is_a_pair_scorer(scorer):
    assert isinstance(scorer, PairScorer)
