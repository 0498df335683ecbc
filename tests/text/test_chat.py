import pytest

from mnemorank.text.chat import is_reply, user_text, user_turns, without_role

CHAT = "Trip\nuser: a canoe\nand a paddle\nassistant: a kayak\n\nuser: no\nHuman: red\nTOOL: found\nai: good\nuser: "


def test_user_turns():
    turns = [CHAT[start:end].strip() for start, end in user_turns(CHAT)]
    assert turns == ["Trip", "user: a canoe\nand a paddle", "user: no", "Human: red"]


@pytest.mark.parametrize(
    "text", ["a kayak", "Ana: a kayak\nBen: red", "System: postgres 15\nTool: psql", "assistant: yes", ""]
)
def test_texts_without_a_user_have_no_user_turns(text):
    assert user_turns(text) == []


def test_user_text_leaves_out_replies():
    assert user_text(CHAT).split() == "Trip user: a canoe and a paddle user: no Human: red user:".split()
    assert user_text("System: postgres 15\nTool: psql") == "System: postgres 15\nTool: psql"


def test_roles_of_speakers():
    assert [is_reply(speaker) for speaker in ("assistant", " Tool ", "user", "Ana", "", None)] == [True] * 2 + [
        False
    ] * 4
    assert without_role("User: I moved") == "I moved"
    assert without_role("Ana: I moved") == "Ana: I moved"
