"""Arguments of `rerank`: what is accepted, and the errors and warnings for the rest."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pytest

from mnemorank import Failover, InputError, Memory, Options, Reranker
from tests.helpers.forking import forked
from tests.helpers.requests import POOL, QUERY


@pytest.mark.parametrize(
    ("arguments", "field"),
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
def test_an_invalid_argument_is_named(reranker, arguments, field):
    call = {"query": QUERY, "memories": POOL, **arguments}
    with pytest.raises(InputError) as error:
        reranker.rerank(call.pop("query"), call.pop("memories"), **call)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"first_stage": "bm52"}, "first_stage"),
        ({"max_scored": 0}, "max_scored"),
        ({"max_scored": "x"}, "max_scored"),
        ({"max_scored": True}, "max_scored"),
        ({"supersession": "hide"}, "supersession"),
        ({"supersession": None}, "supersession"),
        ({"supersession": ["drop"]}, "supersession"),
        ({"supersede_similar": "yes"}, "supersede_similar"),
        ({"weights": [1]}, "weights"),
        ({"weights": {"recensy": 1}}, "weights.recensy"),
        ({"weights": {"same_day": -1}}, "weights.same_day"),
        ({"abstain_below": 1.5}, "abstain_below"),
        ({"abstain_below": "high"}, "abstain_below"),
        ({"abstain_below": float("nan")}, "abstain_below"),
        ({"abstain_below": True}, "abstain_below"),
    ],
)
def test_an_invalid_option_is_named(options, field):
    with pytest.raises(InputError) as error:
        Options(**options)
    assert error.value.field == field
    assert str(error.value).startswith(f"{field}: ")


def test_options_must_be_an_options_object(reranker):
    with pytest.raises(InputError) as error:
        reranker.rerank(QUERY, POOL, options={"max_scored": 3})
    assert error.value.field == "options"


def test_memory_objects_are_checked_too(reranker):
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


def test_an_unsupported_instruction_gives_a_warning(reranker):
    (warning,) = reranker.rerank(QUERY, POOL, instruction="prefer the newest").warnings
    assert warning.startswith("instruction: ")


def test_numpy_numbers_are_accepted(reranker):
    options = Options(max_scored=np.int64(3), abstain_below=np.float32(0.3))
    assert len(reranker.rerank(QUERY, POOL, top_k=np.int64(1), deadline_ms=np.int64(60_000), options=options)) == 1


def test_reranking_works_after_fork(folder):
    with Reranker(folder, threads=2) as warm:

        def order():
            return [result.index for result in warm.rerank(QUERY, POOL)]

        expected = order()
        assert forked(order) == expected


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"model": None}, "model"),
        ({"model": 5}, "model"),
        ({"model": Failover(["mini"]), "threads": 1}, "threads"),
        ({"options": {"floor": 0.2}}, "options"),
    ],
)
def test_an_invalid_constructor_argument_is_named(arguments, field):
    with pytest.raises(InputError) as caught:
        Reranker(**arguments)
    assert caught.value.field == field


def test_a_reranker_and_its_options_print_what_was_set(folder):
    assert repr(Options()) == "Options()"
    assert repr(Options(floor=0.2)) == "Options(floor=0.2)"
    assert eval(repr(Options.model_only())) == Options.model_only()
    assert repr(Reranker(folder, options=Options(floor=0.2), threads=1)) == (
        f"Reranker({folder!r}, options=Options(floor=0.2), threads=1)"
    )
