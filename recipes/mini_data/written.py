"""Lists from what we wrote ourselves: passages, people with memories and turns of a chat, linked entries, decoys."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from shared import Fields, MadeList, number, records

from mnemorank.ranking.lexical import bm25

OWN = Path(__file__).parent / "own"
# Of a person's memories, those that share the most words with the turn: the rest teach nothing.
MOST_WRONG = 12
# Of the scenes with decoys one in so many is kept to choose by, and those of one hand to be measured on alone.
KEPT, TEST_HAND = 12, "o"


def make(rng: random.Random) -> dict[str, list[MadeList]]:
    """Of the passages and hops a third bear dates, which mean nothing there: a date alone must not change a score."""
    passages = [made for topic in _read("passages") for made in _questions(topic["passages"], topic["questions"])]
    hops = [made for group in _read("hops") for made in _hops(group)]
    return {
        "passages": [dated(made, rng) if rng.random() < 1 / 3 else made for made in passages],
        "personas": [made for persona in _read("personas") for made in _turns(persona)],
        "hops": [dated(made, rng) if rng.random() < 1 / 3 else made for made in hops],
        **decoys(),
    }


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


def _read(name: str) -> Iterator[dict[str, Any]]:
    return records(OWN / f"{name}.jsonl.gz")


def _questions(memories: Sequence[str | Fields], questions: Sequence[Fields]) -> Iterator[MadeList]:
    for question in questions:
        right = memories[question["right"]]
        yield MadeList(question["query"], [right], [memory for memory in memories if memory != right])


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
