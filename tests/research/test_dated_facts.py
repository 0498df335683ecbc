from __future__ import annotations

import random

import dated_facts

from mnemorank.memory.memory import Memory


def test_the_same_seed_makes_the_same_lists():
    assert dated_facts.make(20, random.Random(5)) == dated_facts.make(20, random.Random(5))


def test_neither_the_newest_nor_the_ongoing_memory_is_always_relevant():
    lists = dated_facts.make(400, random.Random(5))
    newest = ongoing = 0
    for made in lists:
        relevant, *others = [Memory.of(fields) for fields in (*made.positives, *made.negatives)]
        newest += all(memory.date is None or not memory.is_newer_than(relevant) for memory in others)
        ongoing += relevant.is_ongoing
    assert 0.15 < newest / len(lists) < 0.6
    assert 0.1 < ongoing / len(lists) < 0.5


def test_every_memory_is_valid_and_no_positive_is_a_negative():
    for made in dated_facts.make(200, random.Random(6)):
        assert made.query
        assert made.negatives
        for fields in (*made.positives, *made.negatives):
            memory = Memory.of(fields)
            assert memory.occurred_end is None or not memory.occurred_end.is_before(memory.occurred_start)
        assert made.positives[0] not in made.negatives
