"""The made dated facts of the bundled model's mix: no shortcut by date answers them."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from mnemorank.memory import Memory


@pytest.fixture
def dates(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "recipes" / "mini_data"))
    import dates

    yield dates
    for name in ("dates", "shared"):
        sys.modules.pop(name, None)


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
