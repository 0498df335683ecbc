"""Lists from what we wrote ourselves: passages, people with memories and turns of a chat, linked entries, decoys,
conversations of two people, and threads of what one user told an assistant."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from lists import Fields, MadeList, near_and_some, number, records

from mnemorank.text.bm25 import bm25

OWN = Path(__file__).parent / "data"
# Of a person's memories, those that share the most words with the turn: the rest teach nothing.
MOST_WRONG = 12
# Of the scenes with decoys and of the threads one in so many is kept to choose by. Of scenes and of conversations one
# hand's are kept to be measured on alone, of conversations another's to choose by.
KEPT, TEST_HAND = 12, "o"
# So of the articles, but for topics of older passages, which have trained from the start.
KEPT_ARTICLES = 10
DEV_TALK, TEST_TALK = "d", "e"
# Of an article's other paragraphs and of a conversation's other turns: those that share the most words with the
# question, and some at random.
NEAR_PARAGRAPHS, FAR_PARAGRAPHS = 6, 2
NEAR_TURNS, FAR_TURNS = 8, 4


def make(rng: random.Random) -> dict[str, list[MadeList]]:
    hops = [made for group in _read("hops") for made in _hops(group)]
    return {
        **passages(rng),
        "personas": [made for persona in _read("personas") for made in _turns(persona)],
        "hops": _some_dated(hops, rng),
        **decoys(),
        **conversations(rng),
        **threads(rng),
    }


def passages(rng: random.Random) -> dict[str, list[MadeList]]:
    """Questions about a passage among others of its topic. Of the articles that bear a hand's name those nearest by
    words are the others; of some, kept to choose by, all of them."""
    made: dict[str, list[MadeList]] = {"passages": [], "articles": [], "articles-dev": []}
    topics = list(_read("passages"))
    older = {topic["topic"] for topic in topics if "hand" not in topic}
    for topic in topics:
        asked = list(_questions(topic["passages"], topic["questions"]))
        if "hand" not in topic:
            made["passages"] += asked
        elif topic["topic"] not in older and number(topic["topic"]) % KEPT_ARTICLES == 0:
            made["articles-dev"] += asked
        else:
            made["articles"] += [_narrowed(each, rng) for each in asked]
    return {**made, **{name: _some_dated(made[name], rng) for name in ("passages", "articles")}}


def decoys() -> dict[str, list[MadeList]]:
    """Scenes of four memories that share words: the question of each one, and a question that none answers."""
    made: dict[str, list[MadeList]] = {"decoys": [], "decoys-none": [], "decoys-dev": [], "decoys-test": []}
    for scene in _read("decoys"):
        memories = scene["memories"]
        asked = list(_questions(memories, scene["questions"]))
        unanswered = MadeList(scene["none"], [], memories)
        if scene["hand"] == TEST_HAND:
            made["decoys-test"] += [*asked, unanswered]
        elif number(memories[0]["text"]) % KEPT == 0:
            made["decoys-dev"] += [*asked, unanswered]
        else:
            made["decoys"] += asked
            made["decoys-none"].append(unanswered)
    return made


def conversations(rng: random.Random) -> dict[str, list[MadeList]]:
    """Questions about two people who write to each other; to choose by and to measure on, against every turn."""
    made: dict[str, list[MadeList]] = {f"conversations{part}": [] for part in ("", "-none", "-dev", "-test")}
    for talk in _read("conversations"):
        turns = list(_spoken(talk))
        part = {DEV_TALK: "-dev", TEST_TALK: "-test"}.get(talk["hand"])
        for question in talk["questions"]:
            right = [fields for name, fields in turns if name in question["right"]]
            wrong = [fields for name, fields in turns if name not in question["right"]]
            if part is None:
                beside = _beside(turns, question["right"])
                wrong = _near_and_far(question["query"], [each for each in wrong if each not in beside], rng) + beside
            made[f"conversations{part or ''}"].append(MadeList(question["query"], right, wrong))
        for query in talk["none"]:
            every = [fields for _, fields in turns]
            made[f"conversations{part or '-none'}"].append(
                MadeList(query, [], every if part else _near_and_far(query, every, rng))
            )
    return made


def threads(rng: random.Random) -> dict[str, list[MadeList]]:
    """A user's own questions about what they told an assistant on different days; half with the role before it."""
    made: dict[str, list[MadeList]] = {"threads": [], "threads-none": [], "threads-dev": []}
    for thread in _read("threads"):
        role = "user: " if rng.random() < 0.5 else ""
        messages = [{"text": role + each["text"], "mentioned_at": each["date"]} for each in thread["messages"]]
        kept = number(thread["messages"][0]["text"]) % KEPT == 0
        for question in thread["questions"]:
            right = [messages[i] for i in question["right"]]
            wrong = [message for i, message in enumerate(messages) if i not in question["right"]]
            made["threads-dev" if kept else "threads"].append(MadeList(question["query"], right, wrong))
        made["threads-dev" if kept else "threads-none"].append(MadeList(thread["none"], [], messages))
    return made


def _spoken(talk: dict[str, Any]) -> Iterator[tuple[str, Fields]]:
    """The turns by name (`3:12`: the twelfth of the third session), written as a store of turns would have them."""
    for session_number, session in enumerate(talk["sessions"], 1):
        for turn_number, turn in enumerate(session["turns"], 1):
            photo = f" [photo: {turn['photo']}]" if turn.get("photo") else ""
            text = f"{turn['speaker']}: {turn['text']}{photo}"
            yield f"{session_number}:{turn_number}", {"text": text, "mentioned_at": session["date"]}


def _beside(turns: Sequence[tuple[str, Fields]], right: Sequence[str]) -> list[Fields]:
    """What was said just before and after the right turns: about the same, and no answer."""
    places = [i for i, (name, _) in enumerate(turns) if name in right]
    beside = sorted({j for i in places for j in (i - 1, i + 1) if 0 <= j < len(turns)} - set(places))
    return [turns[i][1] for i in beside]


def _near_and_far(query: str, wrong: Sequence[Fields], rng: random.Random) -> list[Fields]:
    chosen = near_and_some(query, [each["text"] for each in wrong], NEAR_TURNS, FAR_TURNS, rng)
    return [wrong[i] for i in chosen]


def _read(name: str) -> Iterator[dict[str, Any]]:
    return records(OWN / f"{name}.jsonl.gz")


def _questions(memories: Sequence[str | Fields], questions: Sequence[Fields]) -> Iterator[MadeList]:
    for question in questions:
        right = memories[question["right"]]
        yield MadeList(question["query"], [right], [memory for memory in memories if memory != right])


def _narrowed(made: MadeList, rng: random.Random) -> MadeList:
    chosen = near_and_some(made.query, [str(text) for text in made.wrong], NEAR_PARAGRAPHS, FAR_PARAGRAPHS, rng)
    return replace(made, wrong=[made.wrong[i] for i in chosen])


def _turns(persona: dict[str, Any]) -> Iterator[MadeList]:
    memories = persona["memories"]
    for turn in persona["turns"]:
        right = [memories[i] for i in turn["right"]]
        known = [memory for memory in memories if memory["occurred_start"] <= turn["query_time"]]
        wrong = [memory for memory in known if memory not in right]
        shared = bm25(turn["query"], [memory["text"] for memory in wrong])
        yield MadeList(turn["query"], right, [wrong[i] for i in (-shared).argsort(kind="stable")[:MOST_WRONG]])


def _hops(group: dict[str, Any]) -> Iterator[MadeList]:
    texts = [f"{paragraph['title']}: {paragraph['text']}" for paragraph in group["paragraphs"]]
    for question in group["questions"]:
        wrong = [text for i, text in enumerate(texts) if i not in question["right"]]
        yield MadeList(question["query"], [texts[i] for i in question["right"]], wrong)


def _some_dated(made: Sequence[MadeList], rng: random.Random) -> list[MadeList]:
    """A third bear dates, which mean nothing there: a date alone must not change a score."""
    return [dated(each, rng) if rng.random() < 1 / 3 else each for each in made]


def dated(made: MadeList, rng: random.Random) -> MadeList:
    """The list with a date for each memory, right or wrong: a day, with an end or without, of one type or none."""
    kind = rng.choice(("world", "observation", None))

    def at_some_time(text: object) -> Fields:
        start = date(2012, 1, 1) + timedelta(days=rng.randrange(5000))
        fields: Fields = {"text": text, "occurred_start": start.isoformat()}
        if rng.random() < 0.3:
            fields["occurred_end"] = (start + timedelta(days=rng.randrange(1, 1500))).isoformat()
        return {**fields, "type": kind} if kind else fields

    return MadeList(
        made.query, [at_some_time(text) for text in made.right], [at_some_time(text) for text in made.wrong]
    )
