from __future__ import annotations

import gzip
import json
import random

import agent_questions
import pytest
from agent_questions import TITLE_LENGTH, text_key

from mnemorank.memory.memory import Memory


def texts_of(memories):
    return {Memory.of(each).text for each in memories}


def write_gzip(path, *records):
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, records)).encode()))
    return path


def test_every_question_names_its_texts_and_occurs_once():
    by_kind = agent_questions.read_questions()
    assert set(by_kind) == {"paragraph", "pair", "article", "news", "session", "turn"}
    for kind, questions in by_kind.items():
        assert all(len(question["texts"]) == 2 for question in questions if kind == "pair")
        assert all("date" in question for question in questions if kind == "turn")
        assert all(len(key) == 12 for question in questions for key in question["texts"])
        assert len({(question["query"].lower(), question["texts"][0]) for question in questions}) == len(questions)


def test_a_question_about_paragraphs_gets_similar_negatives(write_questions):
    titled = [(f"Film {n}", f"a film of {1900 + n} directed by Person {n}") for n in range(30)]
    texts = [f"{title}: {text}" for title, text in titled]
    write_questions(
        {"kind": "paragraph", "query": "film of 1907?", "texts": [text_key(texts[7])]},
        {"kind": "paragraph", "query": "not in this data", "texts": [text_key("elsewhere")]},
        {"kind": "pair", "query": "older, Film 3 or Film 4?", "texts": [text_key(texts[3]), text_key(texts[4])]},
    )
    duplicate = ("Film 7", "a film of 1907, by Person 7")
    made = agent_questions.make_paragraph_lists([*titled, duplicate], random.Random(1))
    (single,) = made["questions"]
    (pair,) = made["questions-pairs"]
    for each, positives in ((single, [texts[7]]), (pair, texts[3:5])):
        assert [Memory.of(memory).text for memory in each.positives] == positives
        negatives = texts_of(each.negatives)
        assert len(negatives) == 5
        assert negatives <= set(texts) - set(positives)


def test_questions_without_any_of_their_texts_are_an_error(write_questions):
    write_questions({"kind": "paragraph", "query": "who?", "texts": ["0" * 12]})
    with pytest.raises(ValueError, match="1 paragraph questions"):
        agent_questions.make_paragraph_lists([("A", "a text"), ("B", "another text")], random.Random(1))


def test_a_text_that_answers_the_same_query_is_not_a_negative(write_questions):
    titled = [(f"Film {n}", f"a film directed by Person {n}") for n in range(6)]
    texts = [f"{title}: {text}" for title, text in titled]
    write_questions(*({"kind": "paragraph", "query": "which film?", "texts": [text_key(t)]} for t in texts[:2]))
    for made in agent_questions.make_paragraph_lists(titled, random.Random(1))["questions"]:
        assert not texts_of(made.negatives) & set(texts[:2])


def test_the_negatives_of_an_article_question_are_paragraphs_of_the_article(write_questions, tmp_path):
    texts = [f"Paragraph {n} of {name} tells about number {n}." for name in ("alpha", "beta") for n in range(12)]
    records = [
        {"query": "q", "group": group, "candidates": [{"text": text, "label": 0} for text in part]}
        for group, part in (("alpha", texts[:6]), ("alpha", texts[6:12]), ("beta", texts[12:]))
    ]
    path = write_gzip(tmp_path / "articles.jsonl.gz", *records)
    write_questions(*({"kind": "article", "query": "what of number 2?", "texts": [text_key(t)]} for t in texts[2:4]))
    lists = agent_questions.make_article_lists(path, random.Random(1))
    for made, positive in zip(lists, texts[2:4], strict=True):
        assert Memory.of(made.positives[0]).text == positive
        negatives = texts_of(made.negatives)
        assert len(negatives) == 8
        assert negatives <= set(texts[:12]) - set(texts[2:4])


def test_most_negatives_of_a_news_question_are_from_the_same_article(write_questions, tmp_path):
    titles = [f"{name} and a title long enough to tell articles apart. " for name in ("Alpha", "Beta")]
    texts = [f"{title}Passage {n} about {n}." for title in titles for n in range(6)]
    assert all(len(title) > TITLE_LENGTH for title in titles)
    record = {"query": "q", "candidates": [{"text": text, "label": 0} for text in texts]}
    path = write_gzip(tmp_path / "news.jsonl.gz", record)
    write_questions({"kind": "news", "query": "passage about 2?", "texts": [text_key(texts[2])]})
    (made,) = agent_questions.make_news_lists(path, random.Random(1))
    assert Memory.of(made.positives[0]).text == texts[2]
    same_article = [each for each in made.negatives if Memory.of(each).text.startswith("Alpha")]
    assert (len(same_article), len(made.negatives)) == (4, 5)


def test_a_window_that_shares_a_line_with_the_positive_is_not_a_negative(write_questions):
    session = ["user: a dog\nassistant: a collie", "assistant: a collie\nuser: and cats", "user: what about birds"]
    other = [f"user: dog number {n}" for n in range(8)]
    write_questions({"kind": "session", "query": "what breed is my dog", "texts": [text_key(session[0])]})
    (made,) = agent_questions.make_session_lists([session, other], random.Random(1))
    negatives = texts_of(made.negatives)
    assert session[1] not in negatives
    assert session[2] in negatives
    assert negatives & set(other)


def test_the_negatives_of_a_turn_are_earlier_memories(write_questions, tmp_path):
    memories = [
        {"text": f"memory {n}", "occurred_start": f"2026-01-{n + 1:02}", "label": int(n == 0)} for n in range(20)
    ]
    path = write_gzip(tmp_path / "turns.jsonl.gz", {"query": "q", "group": "me", "candidates": memories})
    question = {"kind": "turn", "query": "go on with memory 3", "date": "2026-01-12", "texts": [text_key("memory 3")]}
    write_questions(question)
    (made,) = agent_questions.make_turn_lists(path, random.Random(1))
    assert [each["text"] for each in made.positives] == ["memory 3"]
    assert made.negatives
    assert all(each["occurred_start"] <= "2026-01-12" and each["text"] != "memory 3" for each in made.negatives)
