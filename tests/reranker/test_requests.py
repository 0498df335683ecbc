"""What may be asked, and what is said of what may not."""

from __future__ import annotations

import re
from decimal import Decimal

import numpy as np
import pytest

from mnemorank import InputError, Memory, Options, Reranker
from tests.helpers.forking import forked
from tests.helpers.requests import POOL, QUERY


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"query": ""}, "query"),
        ({"query": "  "}, "query"),
        ({"query": None}, "query"),
        ({"deadline_ms": Decimal(5)}, "deadline_ms"),
        ({"top_k": 0}, "top_k"),
        ({"top_k": "5"}, "top_k"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"now": "soon"}, "now"),
        ({"as_of": "2024-99"}, "as_of"),
        ({"time_range": ("2024", "2023")}, "time_range"),
        ({"time_range": "2024"}, "time_range"),
        ({"memories": [None]}, "memories.0"),
        ({"memories": "text"}, "memories"),
        ({"memories": [{"text": "a"}, {"text": 3}]}, "memories.1.text"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_bad_requests_name_what_is_wrong(reranker, arguments, named):
    given_arguments = {"query": QUERY, "memories": POOL, **arguments}
    with pytest.raises(InputError, match=named):
        reranker.rerank(given_arguments.pop("query"), given_arguments.pop("memories"), **given_arguments)


@pytest.mark.parametrize("bad", [{"first_stage": "bm52"}, {"max_scored": 0}])
def test_bad_options_are_named(bad):
    with pytest.raises(InputError, match=next(iter(bad))):
        Options(**bad)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"supersession": "hide"}, "supersession: expected one of demote, drop, off; got 'hide'"),
        ({"supersession": None}, "supersession: expected one of demote, drop, off; got None"),
        ({"supersession": ["drop"]}, "supersession: expected one of"),
        ({"weights": {"recensy": 1}}, "weights.recensy: unknown weight"),
        ({"weights": {"same_day": -1}}, "weights.same_day: expected a number"),
        ({"weights": [1]}, "weights: expected a mapping"),
        ({"supersede_similar": "yes"}, "supersede_similar: expected True or False"),
        ({"abstain_below": 1.5}, "abstain_below: expected a number from 0 to 1, got 1.5"),
        ({"abstain_below": "high"}, "abstain_below: expected a number from 0 to 1"),
        ({"abstain_below": float("nan")}, "abstain_below: expected a number from 0 to 1"),
    ],
)
def test_wrong_options_name_the_values(options, message):
    with pytest.raises(InputError, match=re.escape(message)):
        Options(**options)


def test_options_of_another_kind_are_named(reranker):
    with pytest.raises(InputError, match=r"options: expected Options\(\.\.\.\), got dict"):
        reranker.rerank(QUERY, POOL, options={"max_scored": 3})
    with pytest.raises(InputError, match="max_scored: expected a whole number from 1, got 'x'"):
        Options(max_scored="x")


def test_records_of_the_callers_own_making_are_checked(reranker):
    with pytest.raises(InputError, match=r"memories\.0\.text"):
        reranker.rerank(QUERY, [Memory(None)])
    scores = [1.0, float("nan"), 3.0, float("inf")]
    ranking = reranker.rerank(
        QUERY, [Memory("cat", first_stage_score=s) for s in scores], options=Options(max_scored=1)
    )
    assert [r.index for r in ranking] == [2, 0, 1, 3]
    with pytest.raises(InputError, match="memories"):
        reranker.rerank(QUERY, None)


def test_an_empty_pool_is_an_empty_ranking(reranker):
    ranking = reranker.rerank(QUERY, [])
    assert len(ranking) == 0
    assert ranking.abstained


def test_duplicate_ids_are_reported_and_kept(reranker):
    ranking = reranker.rerank(QUERY, [Memory("ruby", id="1"), Memory("cat", id="1")])
    assert len(ranking) == 2
    assert "more than once" in ranking.warnings[0]


def test_nan_scores_are_reported(reranker):
    ranking = reranker.rerank(QUERY, [{"text": "a", "score": float("nan")}, {"text": "b", "score": 1.0}])
    assert "NaN" in ranking.warnings[0]
    nan = reranker.rerank(QUERY, [Memory("a", first_stage_score=float("nan")), Memory("b", first_stage_score=1.0)])
    assert {r.index for r in nan} == {0, 1}


def test_skipped_dates_become_warnings(reranker):
    ranking = reranker.rerank(QUERY, [{"text": "a", "occurred_start": "soon"}], on_error="skip")
    assert "occurred_start" in ranking.warnings[0]
    assert ranking[0].memory.date is None


def test_an_instruction_that_the_model_cannot_take_is_said(reranker):
    (warning,) = reranker.rerank(QUERY, POOL, instruction="prefer the newest").warnings
    assert warning == "instruction: ignored, the model's template 'pair' takes none"


def test_numbers_of_numpy_are_numbers_and_truth_is_none(reranker):
    options = Options(max_scored=np.int64(3), abstain_below=np.float32(0.3))
    assert len(reranker.rerank(QUERY, POOL, top_k=np.int64(1), deadline_ms=np.int64(60_000), options=options)) == 1
    for wrong in ({"max_scored": True}, {"abstain_below": True}):
        with pytest.raises(InputError, match=next(iter(wrong))):
            Options(**wrong)


def test_a_forked_process_scores_too(folder):
    with Reranker(folder, threads=2) as warm:

        def order():
            return [result.index for result in warm.rerank(QUERY, POOL)]

        expected = order()
        assert forked(order) == expected
