"""Lists from LongMemEval-S: turns and windows that answer a training question, and pairs that need no labels."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent_questions
from lists import TextPool, TrainingList, drop_words, stable_hash

Turn = dict[str, Any]
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_FIRST_PERSON = re.compile(r"\b(I|I've|I'm|my|we|our)\b")
_WORD = re.compile(r"\w+")
_STOPWORDS = frozenset(
    "a an and are as at be but by for i if in into is it m my not of on or so that the their then there these they "
    "this to ve was will with way also just really ll been have had actually".split()
)
_OPENINGS = [
    "What did I say about", "When did I", "How many", "Where did I", "What was my", "how long have I", "which",
    "Can you remind me of", "What", "I mentioned", "Any advice on my",
]  # fmt: skip

# Turns of more characters identify a session; shorter ones ("Thank you!") occur in many.
DISTINCTIVE_LENGTH = 60


@dataclass(frozen=True, slots=True)
class Window:
    """Some turns of a session as one text."""

    text: str
    turns: frozenset[int]


def make(path: Path, rng: random.Random) -> dict[str, list[TrainingList]]:
    """Make lists of everything but the dev questions (a third of all) and their evidence; see `_training_rows`."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = json.load(stream)
    made: dict[str, list[TrainingList]] = {"lme": [], "reply": [], "said": []}
    known: dict[str, list[Turn]] = {}
    for row, sessions in _training_rows(rows):
        size = rng.choice([85, 110, 125])  # words in a window
        if "_abs" not in row["question_id"]:
            made["lme"] += _answer_lists(row, sessions, size, rng)
        others = [turns for name, turns in sessions.items() if name not in row["answer_session_ids"]]
        made["reply"] += _reply_lists(others, rng)
        made["said"] += _statement_lists(others, size, rng)
        known |= sessions
    windows = ([window.text for window in split_windows(t, agent_questions.WINDOW_WORDS)] for t in known.values())
    made["questions-sessions"] = agent_questions.make_session_lists(windows, rng)
    return made


def _training_rows(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, list[Turn]]]]:
    """Yield the training questions, each with the sessions that training may use.

    The variant `…_abs` of a dev question asks about the same sessions, so it is not a training question. The evidence
    `answer_X` of a dev question occurs in other haystacks as `X` or `X_abs`, so sessions that share a distinctive turn
    with such evidence are excluded.
    """
    dev = [row for row in rows if stable_hash(row["question_id"]) % 3 == 0]
    held_out = {_without_suffix(row["question_id"]) for row in dev}
    hidden = {name for row in dev for name in row["answer_session_ids"]}
    evidence = {
        text
        for row in dev
        for name, turns in _sessions(row).items()
        if name in hidden
        for text in _distinctive_turns(turns)
    }
    for row in rows:
        if _without_suffix(row["question_id"]) not in held_out:
            usable = {
                name: turns
                for name, turns in _sessions(row).items()
                if name not in hidden and evidence.isdisjoint(_distinctive_turns(turns))
            }
            yield row, usable


def _without_suffix(question: str) -> str:
    """The part of a question id that its `_abs` variant shares."""
    return question.removesuffix("_abs")


def _sessions(row: dict[str, Any]) -> dict[str, list[Turn]]:
    return dict(zip(row["haystack_session_ids"], row["haystack_sessions"], strict=True))


def _distinctive_turns(session: Sequence[Turn]) -> set[str]:
    """The turns long enough to identify the session."""
    return {turn["content"] for turn in session if len(turn["content"]) > DISTINCTIVE_LENGTH}


def _answer_lists(
    row: dict[str, Any], sessions: dict[str, list[Turn]], size: int, rng: random.Random
) -> list[TrainingList]:
    """A question with the turns, or windows, that answer it; negatives are the best of other sessions by BM25."""
    evidence = set(row["answer_session_ids"])
    key = set(_words(f"{row['question']} {row['answer']}"))
    turns: dict[str, list[str]] = {"positive": [], "same_session": [], "negative": []}
    windows: dict[str, list[str]] = {"positive": [], "negative": []}
    for name, session in sessions.items():
        for turn in session:
            pieces = _pieces(turn, size)
            if name in evidence and turn.get("has_answer"):
                turns["positive"].append(max(pieces, key=lambda piece: len(key & set(_words(piece)))))
            else:
                turns["same_session" if name in evidence else "negative"] += pieces[: 1 if name in evidence else 2]
        for window in split_windows(session, size):
            if name not in evidence:
                windows["negative"].append(window.text)
            elif any(session[i].get("has_answer") for i in window.turns):
                windows["positive"].append(window.text)
    windows["positive"].sort(key=lambda text: -len(key & set(_words(text))))
    best = windows["positive"][: max(2, 2 * len(evidence))]
    if not (turns["positive"] and best and turns["negative"] and windows["negative"]):
        return []
    made = []
    for positives, negatives, same_session, times in (
        (turns["positive"], turns["negative"], turns["same_session"], 8),
        (best, windows["negative"], [], 10),
    ):
        best_by_bm25 = TextPool(negatives).search([row["question"]], 60)[0]
        hard = [negatives[i] for i in best_by_bm25]
        for _ in range(times):
            chosen = [
                *_sample(hard[:25], 2, rng),
                *_sample(hard, 1, rng),
                *_sample(negatives, 1, rng),
                *_sample(same_session, 1, rng),
            ]
            relevant = _sample(positives, 2, rng)
            made.append(TrainingList(row["question"], relevant, _without(chosen, relevant)))
    return made


def _reply_lists(sessions: Sequence[list[Turn]], rng: random.Random, limit: int = 36) -> list[TrainingList]:
    """A message of the user with the reply of the assistant."""
    replies = [
        f"assistant: {turn['content']}" for session in sessions for turn in session if turn["role"] == "assistant"
    ]
    messages = [
        (session, i)
        for session in sessions
        for i, turn in enumerate(session[:-1])
        if turn["role"] == "user" and len(turn["content"]) > 40
    ]
    if not replies:
        return []
    pool = TextPool([text[:900] for text in replies])
    made = []
    for session, i in _sample(messages, limit, rng):
        query = " ".join(session[i]["content"].split()[: rng.randint(12, 50)])
        same_session = {f"assistant: {turn['content']}" for turn in session}
        found = pool.search([query], 12 + len(same_session))[0]
        similar = [replies[j] for j in found if replies[j] not in same_session][:12]
        others = [text for text in replies if text not in same_session]
        negatives = [*_sample(similar, 3, rng), *_sample(others, 1, rng)]
        made.append(TrainingList(query, [f"assistant: {session[i + 1]['content']}"], list(dict.fromkeys(negatives))))
    return [each for each in made if each.negatives]


def _statement_lists(
    sessions: Sequence[list[Turn]], size: int, rng: random.Random, limit: int = 36
) -> list[TrainingList]:
    """A pseudo-question from the words of a user's statement about themselves, with the turn or window of it."""
    turns = [f"user: {turn['content']}" for session in sessions for turn in session if turn["role"] == "user"]
    windows = [
        (session_number, window.text)
        for session_number, session in enumerate(sessions)
        for window in split_windows(session, size)
    ]
    statements = [
        (session_number, turn["content"], sentence.strip())
        for session_number, session in enumerate(sessions)
        for turn in session
        if turn["role"] == "user"
        for sentence in _SENTENCE.split(turn["content"])
        if _FIRST_PERSON.search(sentence) and 7 < len(sentence.split()) < 35 and not sentence.strip().endswith("?")
    ]
    if not turns or not windows:
        return []
    turn_pool, window_pool = TextPool(turns), TextPool([text for _, text in windows])
    made = []
    for session_number, content, sentence in _sample(statements, limit, rng):
        words = [word for word in _WORD.findall(sentence) if word.lower() not in _STOPWORDS]
        if len(words) < 3:
            continue
        start = rng.randint(0, max(0, len(words) - 7))
        kept = drop_words(words[start : start + rng.randint(3, 7)], 0.2, rng)
        query = f"{rng.choice(_OPENINGS)} {' '.join(kept)}{rng.choice(['?', '?', ''])}"
        if rng.random() < 0.5:
            same_session = {f"user: {turn['content']}" for turn in sessions[session_number]}
            made.append(
                TrainingList(query, [f"user: {content}"], turn_pool.sample_negatives(query, same_session, 4, 15, rng))
            )
        else:
            same_session = {text for other, text in windows if other == session_number}
            positives = [text for text in same_session if sentence in text]
            made.append(
                TrainingList(
                    query, sorted(positives)[:1], window_pool.sample_negatives(query, same_session, 4, 15, rng)
                )
            )
    return [each for each in made if each.positives and each.negatives]


def _pieces(turn: Turn, size: int) -> list[str]:
    """Split a turn between sentences into pieces of at most `size` words, each with its speaker."""
    pieces: list[list[str]] = [[]]
    for sentence in _SENTENCE.split(turn["content"]):
        if pieces[-1] and sum(len(part.split()) for part in pieces[-1]) + len(sentence.split()) > size:
            pieces.append([])
        pieces[-1].append(sentence)
    return [f"{turn['role']}: {' '.join(piece)}" for piece in pieces]


def split_windows(session: list[Turn], size: int) -> Iterator[Window]:
    """Split a session into windows of at most `size` words; a short last piece is repeated in the next window."""
    pieces = [(text, i) for i, turn in enumerate(session) for text in _pieces(turn, size)]
    start = 0
    while start < len(pieces):
        end, words = start, 0
        while end < len(pieces) and (end == start or words + len(pieces[end][0].split()) <= size):
            words += len(pieces[end][0].split())
            end += 1
        yield Window("\n".join(text for text, _ in pieces[start:end]), frozenset(i for _, i in pieces[start:end]))
        is_short = end - start > 1 and len(pieces[end - 1][0].split()) <= size // 2
        start = end - 1 if is_short and end < len(pieces) else end


def _sample(values: Sequence[Any], count: int, rng: random.Random) -> list[Any]:
    return rng.sample(list(values), min(count, len(values)))


def _without(values: Sequence[str], excluded: Sequence[str]) -> list[str]:
    return [value for value in dict.fromkeys(values) if value not in excluded]


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in _STOPWORDS]
