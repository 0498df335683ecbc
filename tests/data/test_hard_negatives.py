from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mnemorank.data.examples import Candidate, Example
from mnemorank.data.hard_negatives import NegativeMining, add_hard_negatives
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory

TOPICS = ["cats", "boats", "bread", "chess", "tea", "roses", "snow", "trains"]


def make_example(number: int, group: str | None = None, extra: str = "") -> Example:
    topic = TOPICS[number % len(TOPICS)]
    relevant = Candidate(Memory(f"ann told us in {1990 + number} how she keeps {topic}{extra}"), 1.0)
    return Example(str(number), f"how does ann keep {topic}", (relevant,), group=group)


def pool() -> list[Example]:
    return [make_example(number) for number in range(8)]


def added(example: Example) -> list[str]:
    return [candidate.memory.text for candidate in example.candidates if candidate.label == 0]


def test_negatives_are_added_reproducibly():
    mined = add_hard_negatives(pool(), NegativeMining(count=3), seed=4)
    assert all(len(added(example)) == 3 for example in mined)
    assert all(example.candidates[0].label == 1.0 for example in mined)
    assert mined == add_hard_negatives(pool(), NegativeMining(count=3), seed=4)
    assert [added(example) for example in mined] != [
        added(example) for example in add_hard_negatives(pool(), NegativeMining(count=3), seed=5)
    ]


def test_mined_negatives_have_no_first_stage_score():
    assert {
        c.memory.first_stage_score
        for example in add_hard_negatives(pool(), NegativeMining(count=3))
        for c in example.candidates
    } == {None}
    scored = [replace(example, candidates=(Candidate(example.memories[0].with_score(7.0), 1.0),)) for example in pool()]
    for example in add_hard_negatives(scored, NegativeMining(count=3)):
        assert [c.memory.first_stage_score for c in example.candidates] == [7.0, None, None, None]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_small_counts_include_a_hard_negative(count, share):
    """multi-hop-rag-reranker rounds down to no hard negatives below ten positives."""
    near = Memory("how ann keeps cats from the garden, by a neighbor")
    far = [Memory(f"quite another subject {i}") for i in range(20)]
    (mined,) = add_hard_negatives([make_example(0)], NegativeMining(count=count, hard_share=share), corpus=[near, *far])
    assert near.text in added(mined)
    assert len(added(mined)) == count


def test_hard_share_sets_the_mix_of_hard_and_easy_negatives():
    hard = [Memory(f"ann keeps cats number {i} busy with {word}") for i, word in enumerate(TOPICS * 2)]
    easy = [Memory(f"unrelated line {i}") for i in range(30)]
    (mined,) = add_hard_negatives(
        [make_example(0)], NegativeMining(count=8, hard_share=0.75, last=16), corpus=[*hard, *easy]
    )
    assert sum("cats" in text for text in added(mined)) == 6


def test_hard_negatives_come_from_the_rank_window_below_the_margin():
    corpus = [Memory(f"text {i}") for i in range(10)]
    scores = np.linspace(1.0, 0.1, 10)[None]
    options = {"count": 2, "hard_share": 1.0}

    def texts(**changes):
        (mined,) = add_hard_negatives(
            [example],
            NegativeMining(**options, **changes),
            corpus=corpus,
            retriever=lambda _: lambda _: scores,
        )
        return set(added(mined))

    example = Example("1", "q", ())
    assert texts(first=3, last=4) == {"text 2", "text 3"}
    example = Example("1", "q", (Candidate(corpus[1], 1.0),))
    # The relevant text scores 0.9; texts from 5 on (0.5) are below 0.6 of that. Ranks do not count the relevant text.
    assert texts(first=1, last=6, margin=0.6) <= {"text 5", "text 6", "text 7", "text 8", "text 9"}
    assert texts(first=1, last=3, margin=1.0) == {"text 2", "text 3"}


def test_near_duplicates_of_relevant_memories_are_not_negatives():
    right = "ruby moved to the harbor office of ellery and sons in february of the year 2024"
    copies = [Memory(right + " already"), Memory(right.replace("ruby", "Ruby,")), Memory("ruby likes the harbor")]
    example = Example("1", "where is ruby", (Candidate(Memory(right), 1.0),))
    (mined,) = add_hard_negatives([example], NegativeMining(count=3), corpus=[*copies, Memory(right)])
    assert added(mined) == ["ruby likes the harbor"]


def test_memories_relevant_in_another_example_of_the_query_are_not_negatives():
    """Triplets repeat a query, in another spelling, with another answer."""
    near = Memory("ann keeps cats away from the garden with a hose")
    examples = [
        Example("1", "How does Ann keep cats?", (Candidate(Memory("in a basket by the stove"), 1.0),)),
        Example("2", "how does ann keep cats", (Candidate(Memory("ann keeps cats on the top floor"), 1.0),)),
        Example("3", "how does ann keep boats", (Candidate(near, 1.0),)),
    ]
    mined = add_hard_negatives(examples, NegativeMining(count=3))
    assert added(mined[0]) == added(mined[1]) == [near.text]
    (mined,) = add_hard_negatives(
        examples[:1], NegativeMining(count=3), corpus=[near, *examples[1].memories], others=examples
    )
    assert added(mined) == [near.text]


def test_negatives_can_be_limited_by_group():
    examples = [make_example(i, group="a" if i < 4 else "b") for i in range(8)]
    own = {memory.text for example in examples[:4] for memory in example.memories}
    assert set(added(add_hard_negatives(examples, NegativeMining(count=3, groups="own"))[0])) < own
    for example in add_hard_negatives(examples, NegativeMining(count=3, hard_share=0.5, groups="other"))[:4]:
        assert len(added(example)) == 3
        assert not set(added(example)) & own


def test_invalid_options_are_errors():
    with pytest.raises(InputError, match="hard_share"):
        NegativeMining(hard_share=2)
    with pytest.raises(InputError, match="last"):
        NegativeMining(first=5, last=2)
    with pytest.raises(InputError, match="groups"):
        NegativeMining(groups="mine")
    with pytest.raises(InputError, match="retriever"):
        add_hard_negatives(pool(), NegativeMining(retriever="nowhere"))
    with pytest.raises(InputError, match="hard_negatives"):
        add_hard_negatives([Example("1", "q", ())])
