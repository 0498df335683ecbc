"""BM25 over a pool of memories as the first stage."""

import numpy as np
import pytest

from mnemorank import Memory
from mnemorank._internal.deadline import Deadline
from mnemorank.ranking.first_stage import FirstStageRanking, memories_bm25
from mnemorank.text.bm25 import bm25

SAID_BY_USER = "user: I bought a kayak in May.\nassistant: Nice! What will you do with it?"
REPLIED_BY_ASSISTANT = "user: What sport suits a lake?\nassistant: Many people start with a kayak."


def test_user_words_count_more_than_replies():
    said, replied = memories_bm25("kayak", [Memory(SAID_BY_USER), Memory(REPLIED_BY_ASSISTANT)])
    assert said > replied > 0


def test_the_speaker_of_a_turn_decides_its_weight():
    turns = [Memory("I have a kayak", speaker=speaker) for speaker in ("user", " Assistant ", "Ana", None)]
    user, assistant, named, unknown = memories_bm25("kayak", turns)
    assert user == named == unknown > assistant > 0


@pytest.mark.parametrize(
    "texts",
    [
        ["a kayak on the lake", "a lake"],
        ["Ana: I bought a kayak\nBen: a kayak?", "Ben: the lake"],
        ["user: a kayak", "human: the lake"],
        ["the user: a kayak", "an assistant: replied about a lake"],
        ["System: a kayak\nTool: the lake", "a lake"],
        [],
    ],
)
def test_texts_without_replies_have_plain_bm25_scores(texts):
    expected = bm25("kayak lake", texts)
    np.testing.assert_array_equal(memories_bm25("kayak lake", [Memory(text) for text in texts]), expected)


def test_roles_are_case_insensitive_and_turns_span_lines():
    chat = "User: hello\nASSISTANT: first\na kayak\n\nHuman: a canoe\nsystem: a raft"
    in_reply, other = memories_bm25("kayak", [Memory(chat), Memory("x y z")])
    by_user, _ = memories_bm25("canoe", [Memory(chat), Memory("x y z")])
    assert by_user > in_reply > other == 0


def test_text_before_the_first_turn_counts_as_the_users():
    before, after = memories_bm25("kayak", [Memory("Kayak trip\nassistant: yes"), Memory("the trip\nassistant: kayak")])
    assert before > after


def test_an_expired_deadline_leaves_the_given_order():
    pool = [Memory(REPLIED_BY_ASSISTANT), Memory(SAID_BY_USER), Memory("a kayak")]
    ranking = FirstStageRanking.of("kayak", pool, "bm25", deadline=Deadline(0))
    assert np.isnan(ranking.scores).all()
    assert ranking.order == [0, 1, 2]
    assert np.isfinite(FirstStageRanking.of("kayak", pool, "bm25", deadline=Deadline(60)).scores).all()
