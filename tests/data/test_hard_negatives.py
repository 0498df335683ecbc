from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mnemorank.data.examples import Candidate, Example
from mnemorank.data.hard_negatives import NegativeMining, add_hard_negatives, bm25_scores, load_retriever
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory

TOPICS = ["cats", "boats", "bread", "chess", "tea", "roses", "snow", "trains"]


def example(number: int, group: str | None = None, extra: str = "") -> Example:
    topic = TOPICS[number % len(TOPICS)]
    right = Candidate(Memory(f"ann told us in {1990 + number} how she keeps {topic}{extra}"), 1.0)
    return Example(str(number), f"how does ann keep {topic}", (right,), group=group)


def pool() -> list[Example]:
    return [example(number) for number in range(8)]


def added(example: Example) -> list[str]:
    return [candidate.memory.text for candidate in example.candidates if candidate.label == 0]


def test_negatives_are_added_and_the_same_for_a_seed():
    mined = add_hard_negatives(pool(), NegativeMining(count=3), seed=4)
    assert all(len(added(one)) == 3 for one in mined)
    assert all(one.candidates[0].label == 1.0 for one in mined)
    assert mined == add_hard_negatives(pool(), NegativeMining(count=3), seed=4)
    assert [added(one) for one in mined] != [
        added(one) for one in add_hard_negatives(pool(), NegativeMining(count=3), seed=5)
    ]


def test_no_score_tells_a_mined_negative_from_a_right_memory():
    assert {
        c.memory.first_stage_score
        for one in add_hard_negatives(pool(), NegativeMining(count=3))
        for c in one.candidates
    } == {None}
    scored = [replace(one, candidates=(Candidate(one.memories[0].with_score(7.0), 1.0),)) for one in pool()]
    for one in add_hard_negatives(scored, NegativeMining(count=3)):
        assert [c.memory.first_stage_score for c in one.candidates] == [7.0, None, None, None]


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_hard_ones_come_even_for_a_handful(count, share):
    """R4's own mining rounds to no hard negative below ten positives."""
    near = Memory("how ann keeps cats from the garden, by a neighbour")
    far = [Memory(f"quite another matter {i}") for i in range(20)]
    (mined,) = add_hard_negatives([example(0)], NegativeMining(count=count, hard_share=share), corpus=[near, *far])
    assert near.text in added(mined)
    assert len(added(mined)) == count


def test_the_mix_of_hard_and_easy_follows_the_share():
    hard = [Memory(f"ann keeps cats number {i} busy with {word}") for i, word in enumerate(TOPICS * 2)]
    easy = [Memory(f"unrelated line {i}") for i in range(30)]
    (mined,) = add_hard_negatives(
        [example(0)], NegativeMining(count=8, hard_share=0.75, last=16), corpus=[*hard, *easy]
    )
    assert sum("cats" in text for text in added(mined)) == 6


def test_rank_window_and_margin():
    corpus = [Memory(f"text {i}") for i in range(10)]
    scores = np.linspace(1.0, 0.1, 10)[None]
    options = {"count": 2, "hard_share": 1.0}

    def texts(**changes):
        (mined,) = add_hard_negatives(
            [asked], NegativeMining(**options, **changes), corpus=corpus, retriever=lambda q, t: scores
        )
        return set(added(mined))

    asked = Example("1", "q", ())
    assert texts(first=3, last=4) == {"text 2", "text 3"}
    asked = Example("1", "q", (Candidate(corpus[1], 1.0),))
    # The right one scores .9: below .6 of it are text 5 (.5) and on; the ranks leave the right one out.
    assert texts(first=1, last=6, margin=0.6) <= {"text 5", "text 6", "text 7", "text 8", "text 9"}
    assert texts(first=1, last=3, margin=1.0) == {"text 2", "text 3"}


def test_likely_right_ones_are_left_out():
    right = "ruby moved to the harbour office of ellery and sons in february of the year 2024"
    copies = [Memory(right + " already"), Memory(right.replace("ruby", "Ruby,")), Memory("ruby likes the harbour")]
    asked = Example("1", "where is ruby", (Candidate(Memory(right), 1.0),))
    (mined,) = add_hard_negatives([asked], NegativeMining(count=3), corpus=[*copies, Memory(right)])
    assert added(mined) == ["ruby likes the harbour"]


def test_what_another_example_of_the_question_calls_right_is_no_negative():
    """A triplet a right memory: the question comes up again, in other words and another case, with another answer."""
    near = Memory("ann keeps cats away from the garden with a hose")
    asked = [
        Example("1", "How does Ann keep cats?", (Candidate(Memory("in a basket by the stove"), 1.0),)),
        Example("2", "how does ann keep cats", (Candidate(Memory("ann keeps cats on the top floor"), 1.0),)),
        Example("3", "how does ann keep boats", (Candidate(near, 1.0),)),
    ]
    mined = add_hard_negatives(asked, NegativeMining(count=3))
    assert added(mined[0]) == added(mined[1]) == [near.text]
    (mined,) = add_hard_negatives(asked[:1], NegativeMining(count=3), corpus=[near, *asked[1].memories], others=asked)
    assert added(mined) == [near.text]


def test_negatives_may_be_kept_to_the_group():
    examples = [example(i, group="a" if i < 4 else "b") for i in range(8)]
    own = {memory.text for one in examples[:4] for memory in one.memories}
    assert set(added(add_hard_negatives(examples, NegativeMining(count=3, groups="own"))[0])) < own
    for one in add_hard_negatives(examples, NegativeMining(count=3, hard_share=0.5, groups="other"))[:4]:
        assert len(added(one)) == 3
        assert not set(added(one)) & own


def test_bm25_prefers_shared_words():
    scores = bm25_scores(["cats in snow", "zzz"], ["snow on cats", "bread", "", "cats"])
    assert list(np.argsort(-scores[0])[:2]) == [0, 3]
    assert not scores[1].any()


def test_a_bi_encoder_folder_retrieves(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    from tests.training.conftest import write_bert

    module = Transformer(str(write_bert(tmp_path / "bert")))
    SentenceTransformer(modules=[module, Pooling(module.get_embedding_dimension())]).save(str(tmp_path / "bi"))
    scores = load_retriever(str(tmp_path / "bi"))(["the cat"], ["the cat", "flight to lisbon"])
    assert scores.shape == (1, 2)
    assert scores[0, 0] == pytest.approx(1.0, abs=1e-5)
    assert scores[0, 1] < scores[0, 0]


def test_bad_options_are_named():
    with pytest.raises(InputError, match="hard_share"):
        NegativeMining(hard_share=2)
    with pytest.raises(InputError, match="last"):
        NegativeMining(first=5, last=2)
    with pytest.raises(InputError, match="groups: expected any, own or other"):
        NegativeMining(groups="mine")
    with pytest.raises(InputError, match="bm25 or the folder"):
        add_hard_negatives(pool(), NegativeMining(retriever="nowhere"))
    with pytest.raises(InputError, match="no memory to draw from"):
        add_hard_negatives([Example("1", "q", ())])
