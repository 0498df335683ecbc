"""Rerankers pickle and copy by their constructor arguments; `arerank` mirrors `rerank`."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from mnemorank import Failover, Options, Reranker
from tests.helpers.requests import POOL, QUERY


@pytest.mark.parametrize("duplicate", [lambda r: pickle.loads(pickle.dumps(r)), copy.deepcopy, copy.copy])
def test_copies_rank_like_the_original(folder, duplicate):
    options = Options(first_stage="none", weights={"same_day": 0.0}, max_scored=3)
    with Reranker(folder, options=options, threads=1) as reranker, duplicate(reranker) as other:
        assert other is not reranker
        assert other.model is not reranker.model
        assert other.options == options
        assert list(other.rerank(QUERY, POOL)) == list(reranker.rerank(QUERY, POOL))


@pytest.mark.parametrize("duplicate", [lambda r: pickle.loads(pickle.dumps(r)), copy.deepcopy])
def test_copies_of_a_chain_rank_like_the_original(folder, duplicate):
    reranker = Reranker(Failover([folder, "mini"], timeouts=[5, None], failures=2))
    with reranker, duplicate(reranker) as other:
        assert other.model is not reranker.model
        assert list(other.rerank(QUERY, POOL)) == list(reranker.rerank(QUERY, POOL))
        assert [status.state for status in other.model.status()] == ["closed", "closed"]


class Subclass(Reranker):
    pass


def test_copies_keep_the_class(folder):
    with Subclass(folder) as reranker, pickle.loads(pickle.dumps(reranker)) as other:
        assert type(other) is Subclass


def test_arerank_has_the_signature_of_rerank():
    assert inspect.signature(Reranker.arerank) == inspect.signature(Reranker.rerank)
