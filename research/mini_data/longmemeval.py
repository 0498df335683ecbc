"""Lists from LongMemEval-S: turns and windows that answer a training question, and pairs that cost nothing."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agent_questions as asked
from lists import MadeList, Pool, number, thinned

Turn = dict[str, Any]
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_OF_HIMSELF = re.compile(r"\b(I|I've|I'm|my|we|our)\b")
_WORD = re.compile(r"\w+")
_EMPTY = frozenset(
    "a an and are as at be but by for i if in into is it m my not of on or so that the their then there these they "
    "this to ve was will with way also just really ll been have had actually".split()
)
_ASK = [
    "What did I say about", "When did I", "How many", "Where did I", "What was my", "how long have I", "which",
    "Can you remind me of", "What", "I mentioned", "Any advice on my",
]  # fmt: skip


# What tells a session, whatever its name: a turn of more characters. Shorter ones ("Thank you!") stand in many.
TELLING = 60


@dataclass(frozen=True, slots=True)
class Window:
    """Some turns of a session as one text."""

    text: str
    turns: frozenset[int]


def make(path: Path, rng: random.Random) -> dict[str, list[MadeList]]:
    """All but dev questions (a third), their twins and their evidence: see `_without_dev`."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = json.load(stream)
    made: dict[str, list[MadeList]] = {"lme": [], "reply": [], "said": []}
    known: dict[str, list[Turn]] = {}
    for row, sessions in _without_dev(rows):
        size = rng.choice([85, 110, 125])  # words in a window
        if "_abs" not in row["question_id"]:
            made["lme"] += _answers(row, sessions, size, rng)
        others = [turns for name, turns in sessions.items() if name not in row["answer_session_ids"]]
        made["reply"] += _replies(others, rng)
        made["said"] += _said(others, size, rng)
        known |= sessions
    made["asked-sessions"] = asked.of_sessions(
        ([window.text for window in _windows(turns, asked.WINDOW)] for turns in known.values()), rng
    )
    return made


def _without_dev(rows: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, list[Turn]]]]:
    """The training questions, each with the sessions that may be seen.

    A dev question's twin (`…_abs`) asks about the same sessions, and is none. A dev question's evidence `answer_X`
    stands in other haystacks as `X` or `X_abs`: no session that shares a telling turn with such evidence may be seen.
    """
    dev = [row for row in rows if number(row["question_id"]) % 3 == 0]
    held_out = {_without_suffix(row["question_id"]) for row in dev}
    hidden = {name for row in dev for name in row["answer_session_ids"]}
    told = {text for row in dev for name, turns in _sessions(row).items() if name in hidden for text in _telling(turns)}
    for row in rows:
        if _without_suffix(row["question_id"]) not in held_out:
            seen = _sessions(row).items()
            yield row, {name: turns for name, turns in seen if name not in hidden and told.isdisjoint(_telling(turns))}


def _without_suffix(question: str) -> str:
    """What a question's id shares with that of its twin."""
    return question.removesuffix("_abs")


def _sessions(row: dict[str, Any]) -> dict[str, list[Turn]]:
    return dict(zip(row["haystack_session_ids"], row["haystack_sessions"], strict=True))


def _telling(session: Sequence[Turn]) -> set[str]:
    """The turns that tell the session from others."""
    return {turn["content"] for turn in session if len(turn["content"]) > TELLING}


def _answers(row: dict[str, Any], sessions: dict[str, list[Turn]], size: int, rng: random.Random) -> list[MadeList]:
    """The question → the turn that answers it, and → a window around it; negatives BM25's best of other sessions."""
    evidence = set(row["answer_session_ids"])
    key = set(_words(f"{row['question']} {row['answer']}"))
    turns: dict[str, list[str]] = {"right": [], "beside": [], "wrong": []}
    windows: dict[str, list[str]] = {"right": [], "wrong": []}
    for name, session in sessions.items():
        for turn in session:
            pieces = _pieces(turn, size)
            if name in evidence and turn.get("has_answer"):
                turns["right"].append(max(pieces, key=lambda piece: len(key & set(_words(piece)))))
            else:
                turns["beside" if name in evidence else "wrong"] += pieces[: 1 if name in evidence else 2]
        for window in _windows(session, size):
            if name not in evidence:
                windows["wrong"].append(window.text)
            elif any(session[i].get("has_answer") for i in window.turns):
                windows["right"].append(window.text)
    windows["right"].sort(key=lambda text: -len(key & set(_words(text))))
    best = windows["right"][: max(2, 2 * len(evidence))]
    if not (turns["right"] and best and turns["wrong"] and windows["wrong"]):
        return []
    made = []
    for right, wrong, beside, times in (
        (turns["right"], turns["wrong"], turns["beside"], 8),
        (best, windows["wrong"], [], 10),
    ):
        pool = Pool(wrong)
        hard = [wrong[i] for i in pool.top([row["question"]], 60)[0]]
        for _ in range(times):
            negatives = [*_some(hard[:25], 2, rng), *_some(hard, 1, rng), *_some(wrong, 1, rng), *_some(beside, 1, rng)]
            positives = _some(right, 2, rng)
            made.append(MadeList(row["question"], positives, _without(negatives, positives)))
    return made


def _replies(sessions: Sequence[list[Turn]], rng: random.Random, most: int = 36) -> list[MadeList]:
    """What the user wrote → the assistant's reply."""
    replies = [
        f"assistant: {turn['content']}" for session in sessions for turn in session if turn["role"] == "assistant"
    ]
    asked = [
        (session, i)
        for session in sessions
        for i, turn in enumerate(session[:-1])
        if turn["role"] == "user" and len(turn["content"]) > 40
    ]
    if not replies:
        return []
    pool = Pool([text[:900] for text in replies])
    made = []
    for session, i in _some(asked, most, rng):
        query = " ".join(session[i]["content"].split()[: rng.randint(12, 50)])
        own = {f"assistant: {turn['content']}" for turn in session}
        near = [replies[j] for j in pool.top([query], 12 + len(own))[0] if replies[j] not in own][:12]
        wrong = [*_some(near, 3, rng), *_some([text for text in replies if text not in own], 1, rng)]
        made.append(MadeList(query, [f"assistant: {session[i + 1]['content']}"], list(dict.fromkeys(wrong))))
    return [one for one in made if one.wrong]


def _said(sessions: Sequence[list[Turn]], size: int, rng: random.Random, most: int = 36) -> list[MadeList]:
    """A pseudo-question of words that the user said of himself → the turn or window in which he said them."""
    turns = [f"user: {turn['content']}" for session in sessions for turn in session if turn["role"] == "user"]
    windows = [(number_, window.text) for number_, session in enumerate(sessions) for window in _windows(session, size)]
    told = [
        (number_, turn["content"], sentence.strip())
        for number_, session in enumerate(sessions)
        for turn in session
        if turn["role"] == "user"
        for sentence in _SENTENCE.split(turn["content"])
        if _OF_HIMSELF.search(sentence) and 7 < len(sentence.split()) < 35 and not sentence.strip().endswith("?")
    ]
    if not turns or not windows:
        return []
    turn_pool, window_pool = Pool(turns), Pool([text for _, text in windows])
    made = []
    for number_, content, sentence in _some(told, most, rng):
        words = [word for word in _WORD.findall(sentence) if word.lower() not in _EMPTY]
        if len(words) < 3:
            continue
        start = rng.randint(0, max(0, len(words) - 7))
        kept = thinned(words[start : start + rng.randint(3, 7)], 0.2, rng)
        query = f"{rng.choice(_ASK)} {' '.join(kept)}{rng.choice(['?', '?', ''])}"
        if rng.random() < 0.5:
            own = {f"user: {turn['content']}" for turn in sessions[number_]}
            made.append(MadeList(query, [f"user: {content}"], turn_pool.hard(query, own, 4, 15, rng)))
        else:
            own = {text for other, text in windows if other == number_}
            right = [text for text in own if sentence in text]
            made.append(MadeList(query, sorted(right)[:1], window_pool.hard(query, own, 4, 15, rng)))
    return [one for one in made if one.right and one.wrong]


def _pieces(turn: Turn, size: int) -> list[str]:
    """A turn as pieces of so many words at most, cut between sentences, each with its speaker."""
    pieces: list[list[str]] = [[]]
    for sentence in _SENTENCE.split(turn["content"]):
        if pieces[-1] and sum(len(part.split()) for part in pieces[-1]) + len(sentence.split()) > size:
            pieces.append([])
        pieces[-1].append(sentence)
    return [f"{turn['role']}: {' '.join(piece)}" for piece in pieces]


def _windows(session: list[Turn], size: int) -> Iterator[Window]:
    """A session cut into windows of so many words, on turn borders; the last piece of one opens the next if short."""
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


def _some(values: Sequence[Any], count: int, rng: random.Random) -> list[Any]:
    return rng.sample(list(values), min(count, len(values)))


def _without(values: Sequence[str], banned: Sequence[str]) -> list[str]:
    return [value for value in dict.fromkeys(values) if value not in banned]


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in _EMPTY]
