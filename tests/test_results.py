"""A result as a record."""

from __future__ import annotations

import json

from mnemorank import Memory, Result

RESULT = Result(
    index=3, memory=Memory("Ruby works at Zenith.", id="m3"), rank=0, relevance=0.9, score=0.8, raw_score=2.5,
    rank_change=2, stale=True, superseded_by=1, passage="Zenith", factors={"model": 0.9},
    stale_because="alike",
)  # fmt: skip


def test_to_dict_is_the_servers_record():
    core = {
        "index": 3, "id": "m3", "rank": 0, "relevance": 0.9, "score": 0.8, "raw_score": 2.5, "rank_change": 2,
        "stale": True, "superseded_by": 1, "stale_because": "alike",
    }  # fmt: skip
    texts = {"text": "Ruby works at Zenith.", "passage": "Zenith"}
    assert RESULT.to_dict(texts=False, factors=False) == core
    assert RESULT.to_dict(factors=False) == core | texts
    assert json.loads(json.dumps(RESULT.to_dict())) == core | texts | {"factors": {"model": 0.9}}
