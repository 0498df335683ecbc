"""The weight of a candidate in the `lists` format."""

from __future__ import annotations

import json

import pytest

from mnemorank import InputError, Memory
from mnemorank.data.records import Candidate, Example, read_lists, write_lists


def test_weights_are_written_and_read_and_left_out_where_they_are_one(tmp_path):
    path = tmp_path / "lists.jsonl"
    given = Example(
        "1", "q", (Candidate(Memory("a"), 1.0, 2.5), Candidate(Memory("b"), 0.0), Candidate(Memory("c"), 0, 0))
    )
    write_lists([given], path)
    assert list(read_lists(path)) == [given]
    written = json.loads(path.read_text())["candidates"]
    assert [candidate.get("weight") for candidate in written] == [2.5, None, 0]


@pytest.mark.parametrize("weight", [-1, "2", None, True, float("nan"), 1e9])
def test_a_bad_weight_is_refused(tmp_path, weight):
    path = tmp_path / "lists.jsonl"
    path.write_text(json.dumps({"query": "q", "candidates": [{"text": "a", "label": 1, "weight": weight}]}))
    with pytest.raises(InputError, match=r"lists.jsonl:1: candidate 0: weight: expected a number from 0"):
        list(read_lists(path))
