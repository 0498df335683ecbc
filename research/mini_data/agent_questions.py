"""Lists from questions that agents wrote about texts of public data sets.

`data/questions.jsonl.gz` identifies a text by its hash. A line is `{"kind": KIND, "query": …, "texts": [HASH, …]}` with
the texts that answer together. Kinds: `paragraph` and `pair` (2WikiMultiHopQA; a pair needs both), `article` (training
articles of SQuAD), `news` (MultiHop-RAG), `session` (a window of a LongMemEval session), `turn` (a turn of a chat about
the memories of RealMem, with its date in `date`). There are no questions about texts of dev questions, nor about copies
of LongMemEval's dev sessions (see `longmemeval`).
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from agent_texts import DATA, add_dates
from lists import Fields, TextPool, TrainingList, read_records, similar_and_others

from mnemorank.text.bm25 import bm25

WINDOW_WORDS = 110  # of a session
TITLE_LENGTH = 32  # all passages of a news article start with its title
DATED_SHARE = 1 / 6

Question = dict[str, Any]


def text_key(text: str) -> str:
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:12]


@cache
def read_questions() -> dict[str, list[Question]]:
    """Return the questions by kind."""
    by_kind: dict[str, list[Question]] = defaultdict(list)
    for question in read_records(DATA / "questions.jsonl.gz"):
        by_kind[question["kind"]].append(question)
    return by_kind


def match_texts(questions: Sequence[Question], texts: Iterable[str]) -> list[tuple[str, list[str], set[str]]]:
    """Return the questions whose texts are available: query, texts, and all texts that answer the same query."""
    by_key = {text_key(text): text for text in texts}
    available = [question for question in questions if all(key in by_key for key in question["texts"])]
    if questions and not available:
        raise ValueError(f"none of the texts of {len(questions)} {questions[0]['kind']} questions is in the data")
    answers: dict[str, set[str]] = defaultdict(set)
    for question in available:
        answers[question["query"].lower()] |= {by_key[key] for key in question["texts"]}
    return [(q["query"], [by_key[key] for key in q["texts"]], answers[q["query"].lower()]) for q in available]


def make_paragraph_lists(titled: Sequence[tuple[str, str]], rng: random.Random) -> dict[str, list[TrainingList]]:
    """Lists about paragraphs of 2WikiMultiHopQA; negatives are similar to the query or to the answer.

    Some paragraphs occur twice with small differences: one title is never both positive and negative.

    :param titled: title and text of each paragraph.
    """
    questions = read_questions()
    texts = [f"{title}: {text}" for title, text in titled]
    titles = dict(zip(texts, (title for title, _ in titled), strict=True))
    pool = TextPool(texts)
    return {
        "questions": _pool_lists(questions["paragraph"], titles, pool, rng, similar_to_answer=2),
        "questions-pairs": _pool_lists(questions["pair"], titles, pool, rng, similar_to_answer=1),
    }


def make_article_lists(path: Path, rng: random.Random) -> list[TrainingList]:
    """Lists about paragraphs of SQuAD; negatives are paragraphs of the same article, most of them similar."""
    articles: dict[str, dict[str, None]] = defaultdict(dict)
    for record in read_records(path):
        articles[record["group"]] |= {each["text"]: None for each in record["candidates"]}
    article_of = {text: list(texts) for texts in articles.values() for text in texts}
    made = []
    for query, positives, answers in match_texts(read_questions()["article"], article_of):
        others = [text for text in article_of[positives[0]] if text not in answers]
        negatives = [others[i] for i in similar_and_others(query, others, 6, 2, rng)]
        made.append(_add_some_dates(TrainingList(query, positives[:1], negatives), rng))
    return made


def make_news_lists(path: Path, rng: random.Random) -> list[TrainingList]:
    """Lists about news passages; negatives are passages of the same article, and a similar one of another."""
    texts: dict[str, Fields] = {}
    for record in read_records(path):
        texts |= {
            each["text"]: {k: v for k, v in each.items() if k in ("text", "occurred_start")}
            for each in record["candidates"]
        }
    articles: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        articles[text[:TITLE_LENGTH]].append(text)
    pool = TextPool(list(texts))
    made = []
    for query, positives, answers in match_texts(read_questions()["news"], texts):
        article = [text for text in articles[positives[0][:TITLE_LENGTH]] if text not in answers]
        rng.shuffle(article)
        negatives = [*article[:4], *pool.sample_negatives(query, {*answers, *article}, 1, 6, rng)]
        memories = [(texts[text] if rng.random() < 0.5 else text) for text in (positives[0], *negatives)]
        made.append(TrainingList(query, memories[:1], memories[1:]))
    return made


def make_session_lists(sessions: Iterable[Sequence[str]], rng: random.Random) -> list[TrainingList]:
    """Lists about windows of chat sessions; negatives are other windows of the session, and of other sessions.

    A window that shares lines with the positive is not a negative.

    :param sessions: the windows of each session.
    """
    session_of = {text: windows for windows in sessions for text in windows}
    pool = TextPool(list(session_of))
    made = []
    for query, positives, answers in match_texts(read_questions()["session"], session_of):
        lines = set(positives[0].split("\n"))
        same_session = [text for text in session_of[positives[0]] if not lines & set(text.split("\n"))]
        rng.shuffle(same_session)
        excluded = {*session_of[positives[0]], *answers}
        negatives = [*same_session[:2], *pool.sample_negatives(query, excluded, 3, 10, rng)]
        made.append(_add_some_dates(TrainingList(query, positives[:1], negatives), rng))
    return made


def make_turn_lists(path: Path, rng: random.Random, count: int = 8) -> list[TrainingList]:
    """Lists about turns of a chat; negatives are earlier memories of the same person, most of them similar."""
    memories: dict[str, dict[str, Fields]] = defaultdict(dict)
    for record in read_records(path):
        for each in record["candidates"]:
            fields = {k: v for k, v in each.items() if k != "label"}
            known = memories[record["group"]].setdefault(text_key(each["text"]), fields)
            if fields["occurred_start"] < known["occurred_start"]:  # the first mention counts
                memories[record["group"]][text_key(each["text"])] = fields
    made = []
    for question in read_questions()["turn"]:
        person = next((by_key for by_key in memories.values() if question["texts"][0] in by_key), None)
        if person is None:
            continue
        earlier = {key: fields for key, fields in person.items() if fields["occurred_start"] <= question["date"]}
        others = [fields for key, fields in earlier.items() if key not in question["texts"]]
        scores = bm25(question["query"], [fields["text"] for fields in others])
        similar = [others[i] for i in (-scores).argsort(kind="stable")[: count * 2]]
        rest = [fields for fields in others if fields not in similar]
        negatives = [*rng.sample(similar, min(count - 2, len(similar))), *rng.sample(rest, min(2, len(rest)))]
        positives = [earlier[key] for key in question["texts"] if key in earlier]
        made.append(TrainingList(question["query"], positives, negatives))
    return [each for each in made if each.positives and each.negatives]


def _pool_lists(
    questions: Sequence[Question],
    titles: dict[str, str],
    pool: TextPool,
    rng: random.Random,
    similar_to_answer: int,
    count: int = 5,
) -> list[TrainingList]:
    matched = match_texts(questions, titles)
    by_query = pool.search([query for query, _, _ in matched], 14)
    by_answer = pool.search([positives[0] for _, positives, _ in matched], 10)
    made = []
    for (query, positives, answers), *found in zip(matched, by_query, by_answer, strict=True):
        excluded = {titles[text] for text in answers}
        like_query, like_answer = (
            [text for text in (pool.texts[i] for i in best) if titles[text] not in excluded] for best in found
        )
        negatives = rng.sample(like_query[:8], min(count - similar_to_answer, len(like_query[:8])))
        others = [text for text in like_answer if text not in negatives][:4]
        negatives += rng.sample(others, min(similar_to_answer, len(others)))
        made.append(_add_some_dates(TrainingList(query, positives, negatives), rng))
    return made


def _add_some_dates(made: TrainingList, rng: random.Random) -> TrainingList:
    return add_dates(made, rng) if rng.random() < DATED_SHARE else made
