"""Rankings and results."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mnemorank import Memory, Moment, Options
from tests.helpers.requests import POOL, QUERY


def test_results_are_best_first_with_all_fields(reranker):
    ranking = reranker.rerank(QUERY, POOL, top_k=2)
    assert [result.index for result in ranking] == [1, 3]
    best = ranking[0]
    assert best.raw_score == 1
    assert best.relevance == pytest.approx(1 / (1 + math.exp(-0.5)))
    assert best.rank_change == 1
    assert ranking.scored_by == "overlap"
    assert (best.rank, best.text, best.stale, best.passage) == (1, "ruby work at aurora", False, None)


def test_factors_multiply_to_the_score(reranker):
    pool = [Memory("ruby", trust=1.0, proof_count=100, occurred_start=Moment(2024))]
    (result,) = reranker.rerank(
        QUERY, pool, explain=True, now="2024-06-01", time_range=("2024", "2024"),
        options=Options(first_stage="none", recency="linear"),
    )  # fmt: skip
    factors = result.factors
    product = result.relevance * np.prod([factors[name] for name in ("recency", "temporal", "proof", "trust")])
    assert result.score == pytest.approx(product)
    assert not reranker.rerank(QUERY, pool)[0].factors


def test_as_dicts_returns_copies_with_rank_and_score(reranker):
    records = [{"content": "the cat", "n": 1}, {"content": "ruby work", "n": 2}]
    ranked = reranker.rerank(QUERY, records).as_dicts()
    assert [record["n"] for record in ranked] == [2, 1]
    assert ranked[0]["score"] > ranked[1]["score"]
    assert [(record["rank"], record["stale"]) for record in ranked] == [(1, False), (2, False)]
    assert ranked[0]["relevance"] > ranked[1]["relevance"]
    assert records == [{"content": "the cat", "n": 1}, {"content": "ruby work", "n": 2}]


def test_as_dicts_keeps_all_fields_of_a_memory(reranker):
    (record,) = reranker.rerank(QUERY, [Memory("ruby", id="7", occurred_start=Moment(2024))]).as_dicts()
    assert (record["id"], record["occurred_start"]) == ("7", "2024")


def test_as_dicts_is_json_serializable(reranker):
    ranking = reranker.rerank(QUERY, POOL)
    json.dumps(ranking.as_dicts())


def test_ranking_to_dict(reranker):
    ranking = reranker.rerank(QUERY, POOL, top_k=2)
    record = json.loads(json.dumps(ranking.to_dict()))
    assert [each["index"] for each in record["results"]] == [result.index for result in ranking]
    assert {"relevance", "stale", "text"} <= set(record["results"][0])
    assert record["abstained"] is ranking.abstained


def test_as_dicts_of_objects_read_through_field(reranker):
    note = SimpleNamespace(body="ruby work", id=3, metadata={"page": 4})
    (record,) = reranker.rerank(QUERY, [note], field="body").as_dicts()
    assert record["text"] == "ruby work"
    json.dumps(record)


def test_results_can_be_reranked(reranker):
    first = reranker.rerank(QUERY, [{"text": "ruby work", "occurred_start": "2024-03", "key": "job"}])
    (record,) = reranker.rerank(QUERY, list(first)).as_dicts()
    assert (record["text"], record["occurred_start"], record["metadata"]) == ("ruby work", "2024-03", {"key": "job"})
    json.dumps(record)


_memories = st.builds(
    Memory,
    st.lists(st.sampled_from("ruby work aurora cat dog now".split()), max_size=5).map(" ".join),
    first_stage_score=st.none() | st.floats(-1, 1),
    occurred_start=st.none() | st.sampled_from([Moment(2019), Moment(2022), Moment(2025)]),
    trust=st.none() | st.sampled_from([0.1, 0.9]),
    metadata=st.just({}) | st.just({"key": "job"}),
)
_options = st.builds(
    Options,
    supersession=st.sampled_from(["demote", "drop", "off"]),
    supersede_similar=st.booleans(),
    recency=st.sampled_from(["none", "linear"]),
    diversity=st.none() | st.sampled_from([0.3, 0.9]),
    tie_margin=st.sampled_from([0.0, 0.2]),
    max_scored=st.none() | st.integers(1, 4),
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pool=st.lists(_memories, max_size=8), options=_options, as_of=st.sampled_from([None, "2021"]))
def test_sorting_by_score_reproduces_the_order(reranker, pool, options, as_of):
    results = list(reranker.rerank(QUERY, pool, options=options, as_of=as_of, now="2026"))
    scored = [result for result in results if result.score is not None]
    assert results[: len(scored)] == scored
    assert sorted(scored, key=lambda result: -result.score) == scored
    assert len({float(np.float32(result.score)) for result in scored}) == len(scored)
    assert [result.rank for result in results] == list(range(1, len(results) + 1))


def test_relevance_does_not_depend_on_the_pool(reranker):
    alone = reranker.rerank(QUERY, ["ruby work"])[0]
    pool = [Memory("ruby work", first_stage_score=0.1), *(Memory(text, first_stage_score=0.9) for text in POOL)]
    among = next(result for result in reranker.rerank(QUERY, pool) if result.index == 0)
    (scored,) = reranker.score(QUERY, ["ruby work"])
    assert alone.relevance == among.relevance == scored.relevance
