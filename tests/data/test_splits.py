from __future__ import annotations

import pytest

from mnemorank.data.examples import Candidate, Example
from mnemorank.data.splits import check_leaks, find_leaks, split_by_group
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.text.near_duplicates import shingles
from mnemorank.text.similarity import jaccard

LONG = "what did the doctor say about the new medicine that father takes every morning since the visit in march"


def example(number: int, query: str, group: str | None = None, text: str = "x") -> Example:
    return Example(str(number), query, (Candidate(Memory(text), 1.0),), group=group)


def test_a_group_is_never_on_both_sides():
    examples = [example(i, f"question {i}", f"persona {i % 25}") for i in range(200)]
    split = split_by_group(examples, 0.2)
    assert {e.group for e in split.train}.isdisjoint({e.group for e in split.dev})
    assert len(split.train) + len(split.dev) == 200
    assert 1 <= len({e.group for e in split.dev}) <= 12
    more = split_by_group([*examples, *(example(i, "new", f"persona {i}") for i in range(25, 60))], 0.2)
    assert {e.group for e in split.dev} <= {e.group for e in more.dev}


def test_spellings_of_a_query_share_a_split_key():
    assert example(1, "Where is Ruby?").split_key == example(2, "where is  ruby").split_key
    assert example(3, "Where is Ruby?", group="ann").split_key == "ann"


def test_small_datasets_have_examples_on_both_sides():
    for share in (0.01, 0.99):
        split = split_by_group([example(i, f"q {i}") for i in range(3)], share)
        assert split.train
        assert split.dev
    with pytest.raises(InputError, match="group"):
        split_by_group([example(1, "q"), example(2, "q")])
    with pytest.raises(InputError, match="dev_share"):
        split_by_group([], 1.5)


def test_near_duplicates_across_sides_are_leaks():
    noise = [example(i, f"something else number {i} entirely about topic {i * 7}") for i in range(300)]
    train = [*noise, example(900, LONG)]
    dev = [example(901, LONG + " 2024"), example(902, "who repaired the roof of the old barn")]
    (leak,) = find_leaks(train, dev)
    assert (leak.train_id, leak.dev_id, leak.what) == ("900", "901", "query")
    assert leak.similarity == pytest.approx(jaccard(shingles(LONG), shingles(LONG + " 2024")))
    with pytest.raises(InputError, match=r"900.*901") as raised:
        check_leaks(train, dev)
    assert raised.value.code == "leak"
    check_leaks(noise, dev[1:])


def test_shared_groups_and_memories_are_leaks():
    train, dev = [example(1, "who is ann", "p1", LONG)], [example(2, "what is tea", "p1", LONG + " again")]
    assert [leak.what for leak in find_leaks(train, dev)] == ["group"]
    assert [leak.what for leak in find_leaks(train, dev, memories=True)] == ["group", "memory"]
