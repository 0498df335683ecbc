"""Dev questions of LongMemEval and their evidence are not trained on."""

from __future__ import annotations

import gzip
import json
import random

import longmemeval
import pytest
from agent_questions import WINDOW_WORDS, text_key
from lists import stable_hash

from mnemorank.memory.memory import Memory


def make_session(name):
    """Turns that are long enough to identify the session."""
    return [
        {"role": role, "content": f"I and my {name} {number}, as the {role} has it, are here for twelve long days."}
        for number in range(3)
        for role in ("user", "assistant")
    ]


def make_row(question_id, evidence, sessions):
    return {
        "question_id": question_id,
        "question": f"What about my {evidence}?",
        "answer": evidence,
        "answer_session_ids": [evidence],
        "haystack_session_ids": list(sessions),
        "haystack_sessions": list(sessions.values()),
    }


@pytest.fixture
def training_text(tmp_path):
    """Returns all text of the lists made from rows of LongMemEval."""

    def make(*rows):
        path = tmp_path / "rows.json.gz"
        path.write_bytes(gzip.compress(json.dumps(rows).encode()))
        lists = [made for part in longmemeval.make(path, random.Random(1)).values() for made in part]
        assert lists
        memories = [(made.query, each) for made in lists for each in (*made.positives, *made.negatives)]
        return " ".join(f"{query} {Memory.of(each).text}" for query, each in memories)

    return make


def find_id(*, is_dev):
    """A question id in dev or not, whose `_abs` variant is not in dev."""

    def in_dev(name):
        return stable_hash(name) % 3 == 0

    return next(name for name in map(str, range(99)) if in_dev(name) == is_dev and not in_dev(f"{name}_abs"))


def test_the_evidence_of_dev_questions_is_excluded_under_any_name(write_questions, training_text):
    evidence, others = make_session("parrot"), {f"s{n}": make_session(f"cat{n}") for n in range(4)}
    partial_copy = [{"role": "user", "content": "Hello!"}, *evidence[2:4]]
    windows = [
        window.text for turns in (evidence, others["s1"]) for window in longmemeval.split_windows(turns, WINDOW_WORDS)
    ]
    write_questions(*({"kind": "session", "query": "what about it?", "texts": [text_key(w)]} for w in windows))
    short = {"role": "user", "content": "Thank you!"}  # occurs in many sessions
    haystack = {"1": evidence, "1_abs": partial_copy, **others, "s5": [short, *make_session("dog")]}
    text = training_text(
        make_row(find_id(is_dev=True), "answer_1", {"answer_1": [*evidence, short], **others}),
        make_row(find_id(is_dev=False), "s1", haystack),
    )
    assert "cat1" in text
    assert "dog" in text
    assert "parrot" not in text


def test_the_unanswerable_variant_of_a_dev_question_is_excluded(write_questions, training_text):
    write_questions()
    name = find_id(is_dev=True)
    variant_sessions = {"answer_2": make_session("parrot"), "s8": make_session("goose"), "s9": make_session("gander")}
    others = {f"s{n}": make_session(f"cat{n}") for n in range(4)}
    text = training_text(
        make_row(name, "answer_1", {"answer_1": make_session("horse"), **others}),
        make_row(f"{name}_abs", "answer_2", variant_sessions),
        make_row(find_id(is_dev=False), "s1", others),
    )
    assert "cat" in text
    assert "parrot" not in text
    assert "goose" not in text
