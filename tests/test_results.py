"""Results as dicts."""

from __future__ import annotations

import json
from types import SimpleNamespace

from mnemorank import Memory, Ranking, Result

RESULT = Result(
    index=3, memory=Memory("Ruby works at Zenith.", id="m3"), rank=0, relevance=0.9, score=0.8, raw_score=2.5,
    rank_change=2, stale=True, superseded_by=1, passage="Zenith", factors={"model": 0.9},
    stale_because="similar",
)  # fmt: skip


def test_result_to_dict():
    core = {
        "index": 3, "id": "m3", "rank": 0, "relevance": 0.9, "score": 0.8, "raw_score": 2.5, "rank_change": 2,
        "stale": True, "superseded_by": 1, "stale_because": "similar",
    }  # fmt: skip
    texts = {"text": "Ruby works at Zenith.", "passage": "Zenith"}
    assert RESULT.to_dict(texts=False, factors=False) == core
    assert RESULT.to_dict(factors=False) == core | texts
    assert json.loads(json.dumps(RESULT.to_dict())) == core | texts | {"factors": {"model": 0.9}}


def test_results_carry_the_callers_id_and_record():
    records = ({"text": "a"}, SimpleNamespace(text="b", id=7))
    memory = Memory("b", id="7")
    (result,) = Ranking((Result(1, memory, 0, 0.9, 0.8, 2.5, 0),), records=records)
    assert result.id == "7"
    assert result.record is records[1]
    assert RESULT.record is None
    assert Ranking((result,), records=records)[0] == result


def test_as_dicts_of_documents_hits_and_pairs():
    document = SimpleNamespace(page_content="a", metadata={"page": 3}, id=None, type="Document")
    hit = SimpleNamespace(id=7, score=0.5, payload={"text": "b"}, vector=None)
    records = (document, (document, 0.5), ("c", 0.5), hit, Memory("d"))
    results = tuple(Result(index, Memory(text), index + 1, None, None, None, 0) for index, text in enumerate("aacbd"))
    plain = {"page_content": "a", "metadata": {"page": 3}}
    added = {"score": None, "relevance": None, "stale": False}
    assert Ranking(results, records=records).as_dicts() == [
        {**plain, "rank": 1, **added},
        {**plain, "first_stage_score": 0.5, "rank": 2, **added},
        {"text": "c", "first_stage_score": 0.5, "rank": 3, **added},
        {"id": 7, "first_stage_score": 0.5, "payload": {"text": "b"}, "rank": 4, **added},
        {"text": "d", "rank": 5, **added},
    ]


def test_a_ranking_prints_one_line_per_result():
    assert eval(repr(RESULT.memory)) == RESULT.memory  # a short repr that Python reads back
    assert repr(RESULT).startswith("Result(rank=0, index=3, id='m3', score=0.8, relevance=0.9, stale=True")
    lines = repr(Ranking((RESULT, RESULT), warnings=("id: twice",))).splitlines()
    assert [line.strip().startswith("Result(") for line in lines] == [False, True, True, False, False, False, False]
    assert "id: twice" in lines[-2]
