"""Baselines: BM25, random, first stage, recency and fusion."""

from __future__ import annotations

import numpy as np
import pytest

from mnemorank import Memory, Moment
from mnemorank.evaluation.baselines import baselines
from mnemorank.evaluation.protocol import Question
from mnemorank.evaluation.systems import load_system
from mnemorank.text.bm25 import bm25

MEMORIES = [
    Memory("The cat sleeps all day", mentioned_at=Moment(2021)),
    Memory("Ruby works at Aurora Labs", mentioned_at=Moment(2024, 5)),
    Memory("Ruby worked in a bakery", mentioned_at=Moment(2024, 1)),
    Memory("Undated words about ruby stones"),
]
QUESTION = Question("q", "Where does Ruby work?", MEMORIES, Moment(2024, 6))


def best(name: str, question: Question = QUESTION) -> int:
    return load_system(name).rank(question).ranking[0]


def test_bm25_scores_shared_words():
    scores = load_system("bm25").rank(QUESTION).scores
    assert int(np.argmax(scores)) in (1, 2)
    assert scores[0] == 0


@pytest.mark.parametrize("texts", [["", ""], ["the of and", "a"], ["…"]])
def test_bm25_of_pools_without_words(texts):
    question = Question("q", "the", [Memory(text) for text in texts])
    assert load_system("bm25").rank(question).scores.tolist() == [0.0] * len(texts)


def test_recency_puts_the_newest_first_and_the_undated_last():
    assert load_system("recency").rank(QUESTION).ranking == (1, 2, 0, 3)


def test_first_stage_uses_the_memories_scores_or_else_bm25():
    scored = Question(
        "q", "ruby", [memory.with_score(score) for memory, score in zip(MEMORIES, (1, 0, 9, None), strict=True)]
    )
    assert load_system("first-stage").rank(scored).ranking == (2, 0, 1, 3)
    scores = load_system("first-stage").rank(QUESTION).scores
    assert scores.tolist() == bm25(QUESTION.query, [memory.text for memory in MEMORIES]).tolist()


def test_fusion_prefers_recent_memories_among_equals():
    twins = [Memory("ruby works", mentioned_at=Moment(year)) for year in (2019, 2024, 2022)]
    assert best("fusion", Question("q", "ruby", twins, Moment(2024, 12))) == 1


def test_random_depends_on_the_question_alone():
    first, second = (load_system("random").rank(QUESTION).ranking for _ in range(2))
    assert first == second
    rankings = {(load_system("random").rank(Question(str(i), "q", MEMORIES)).ranking) for i in range(50)}
    assert len(rankings) > 10


def test_random_with_a_lone_surrogate_in_the_key():
    assert sorted(load_system("random").rank(Question("\ud800", "q", MEMORIES)).ranking) == [0, 1, 2, 3]


def test_every_baseline_ranks_every_memory():
    for name in baselines:
        assert sorted(load_system(name).rank(QUESTION).ranking) == [0, 1, 2, 3]
