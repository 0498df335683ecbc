"""The makers of the bundled model's mix: lists without shortcuts, each right memory apart from the wrong ones."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import pytest

from mnemorank.memory import Memory


@pytest.fixture
def makers(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "recipes" / "mini_data"))
    yield
    for name in ("dates", "written", "narrowed", "shared"):
        sys.modules.pop(name, None)


@pytest.fixture
def dates(makers):
    import dates

    return dates


def test_the_same_seed_makes_the_same_lists(dates):
    assert dates.make(20, random.Random(5)) == dates.make(20, random.Random(5))


def test_neither_the_newest_nor_the_ongoing_memory_is_always_right(dates):
    made = dates.make(400, random.Random(5))
    newest = ongoing = 0
    for one in made:
        right, *rest = [Memory.of(fields) for fields in (*one.right, *one.wrong)]
        newest += all(memory.date is None or not memory.is_newer_than(right) for memory in rest)
        ongoing += right.is_ongoing
    assert 0.15 < newest / len(made) < 0.6
    assert 0.1 < ongoing / len(made) < 0.5


def test_every_memory_is_valid_and_the_right_one_is_not_among_the_wrong(dates):
    for one in dates.make(200, random.Random(6)):
        assert one.query
        assert one.wrong
        for fields in (*one.right, *one.wrong):
            memory = Memory.of(fields)
            assert memory.occurred_end is None or not memory.occurred_end.is_before(memory.occurred_start)
        assert one.right[0] not in one.wrong


@pytest.mark.parametrize("name", ["passages", "personas", "hops"])
def test_what_we_wrote_ourselves_is_whole(makers, name):
    import written

    lists = written.make(random.Random(1))[name]
    assert len(lists) > 300
    for one in lists:
        assert one.query.strip()
        assert one.right
        assert len(one.wrong) >= 3
        assert all(memory not in one.wrong for memory in one.right)
        assert all(Memory.of(each).text for each in one.candidates())
    asked = [one.query for one in lists]
    assert len(set(asked)) > 0.99 * len(asked)
    # Where there are dates, right and wrong memories have them alike.
    for one in lists:
        assert len({isinstance(each, dict) and "occurred_start" in each for each in (*one.right, *one.wrong)}) == 1


def test_a_persons_turn_never_sees_a_later_memory(makers):
    import written

    for persona in written._read("personas"):
        for turn, one in zip(persona["turns"], written._turns(persona), strict=True):
            assert all(each["occurred_start"] <= turn["query_time"] for each in one.wrong)


def test_a_long_list_keeps_its_right_memories_and_the_nearest_wrong_ones(makers, tmp_path):
    import narrowed

    wrong = [{"text": f"the cat number {n}" if n < 3 else f"other {n}", "label": 0} for n in range(40)]
    record = {"query": "where is the cat", "candidates": [{"text": "on the mat", "label": 1}, *reversed(wrong)]}
    path = tmp_path / "lists.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(record).encode()))
    (made,) = narrowed.make(path, random.Random(1), wrong=8)
    assert made.right == [{"text": "on the mat"}]
    assert len(made.wrong) == 8
    assert {f"the cat number {n}" for n in range(3)} <= {each["text"] for each in made.wrong}
