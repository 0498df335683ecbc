import numpy as np
import pytest

from mnemorank import Memory
from mnemorank.ranking.first_stage import memories_bm25
from mnemorank.text.bm25 import bm25
from mnemorank.text.chat import user_turns

SAID_BY_USER = "user: I bought a kayak in May.\nassistant: Nice! What will you do with it?"
REPLIED_BY_ASSISTANT = "user: What sport suits a lake?\nassistant: Many people start with a kayak."


def test_user_words_count_more_than_replies():
    said, replied = memories_bm25("kayak", [Memory(SAID_BY_USER), Memory(REPLIED_BY_ASSISTANT)])
    assert said > replied > 0


def test_the_speaker_of_a_turn_decides_its_weight():
    spoken = [Memory("I have a kayak", speaker=speaker) for speaker in ("user", " Assistant ", "Ana", None)]
    user, assistant, named, nobody = memories_bm25("kayak", spoken)
    assert user == named == nobody > assistant > 0


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
    replied = "User: hello\nASSISTANT: first\na kayak\n\nHuman: a canoe\nsystem: a raft"
    alone, other = memories_bm25("kayak", [Memory(replied), Memory("x y z")])
    spoken, _ = memories_bm25("canoe", [Memory(replied), Memory("x y z")])
    assert spoken > alone > other == 0


def test_text_before_the_first_turn_counts_as_the_users():
    before, after = memories_bm25("kayak", [Memory("Kayak trip\nassistant: yes"), Memory("the trip\nassistant: kayak")])
    assert before > after


def test_user_turns():
    text = (
        "Trip\nuser: a canoe\nand a paddle\nassistant: a kayak\n\nuser: no\nHuman: red\nTOOL: found\nai: good\nuser: "
    )
    said = [text[start:end].strip() for start, end in user_turns(text)]
    assert said == ["Trip", "user: a canoe\nand a paddle", "user: no", "Human: red"]


@pytest.mark.parametrize(
    "text", ["a kayak", "Ana: a kayak\nBen: red", "System: postgres 15\nTool: psql", "assistant: yes", ""]
)
def test_texts_without_a_user_have_no_user_turns(text):
    assert user_turns(text) == []
