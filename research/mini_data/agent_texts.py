"""Lists from texts that agents wrote: passages, personas, linked entries, decoys, conversations, and threads.

`data/README.md` describes the files. Some authors and topics are held out for dev and test.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from lists import Fields, TrainingList, read_records, similar_and_others, stable_hash

from mnemorank.text.bm25 import bm25

DATA = Path(__file__).parent / "data"
PERSONA_NEGATIVES = 12
# One in this many decoy scenes and threads, and one in this many articles, is held out for dev.
DEV_FRACTION, ARTICLE_DEV_FRACTION = 12, 10
DECOYS_TEST_AUTHOR = "o"
CONVERSATIONS_DEV_AUTHOR, CONVERSATIONS_TEST_AUTHOR = "d", "e"
# Negatives among the other paragraphs of an article and the other turns of a conversation.
SIMILAR_PARAGRAPHS, OTHER_PARAGRAPHS = 6, 2
SIMILAR_TURNS, OTHER_TURNS = 8, 4
DATED_SHARE = 1 / 3


def make(rng: random.Random) -> dict[str, list[TrainingList]]:
    hops = [made for group in _read("hops") for made in _hop_lists(group)]
    return {
        **make_passage_lists(rng),
        "personas": [made for persona in _read("personas") for made in _persona_lists(persona)],
        "hops": _add_some_dates(hops, rng),
        **make_decoy_lists(),
        **make_conversation_lists(rng),
        **make_thread_lists(rng),
    }


def make_passage_lists(rng: random.Random) -> dict[str, list[TrainingList]]:
    """Lists about a passage among the others of its topic.

    Topics with an author are articles: their lists have the most similar paragraphs and some others, those held out for
    dev all paragraphs. Topics that also occur without an author are not held out, because they were trained on before.
    """
    made: dict[str, list[TrainingList]] = {"passages": [], "articles": [], "articles-dev": []}
    topics = list(_read("passages"))
    without_author = {topic["topic"] for topic in topics if "author" not in topic}
    for topic in topics:
        lists = list(_question_lists(topic["passages"], topic["questions"]))
        if "author" not in topic:
            made["passages"] += lists
        elif topic["topic"] not in without_author and stable_hash(topic["topic"]) % ARTICLE_DEV_FRACTION == 0:
            made["articles-dev"] += lists
        else:
            made["articles"] += [_narrow(each, rng) for each in lists]
    return {**made, **{name: _add_some_dates(made[name], rng) for name in ("passages", "articles")}}


def make_decoy_lists() -> dict[str, list[TrainingList]]:
    """Scenes of four memories that share words: a question for each, and one that none answers."""
    made: dict[str, list[TrainingList]] = {"decoys": [], "decoys-none": [], "decoys-dev": [], "decoys-test": []}
    for scene in _read("decoys"):
        memories = scene["memories"]
        lists = list(_question_lists(memories, scene["questions"]))
        unanswerable = TrainingList(scene["none"], [], memories)
        if scene["author"] == DECOYS_TEST_AUTHOR:
            made["decoys-test"] += [*lists, unanswerable]
        elif stable_hash(memories[0]["text"]) % DEV_FRACTION == 0:
            made["decoys-dev"] += [*lists, unanswerable]
        else:
            made["decoys"] += lists
            made["decoys-none"].append(unanswerable)
    return made


def make_conversation_lists(rng: random.Random) -> dict[str, list[TrainingList]]:
    """Questions about messages of two people; dev and test lists have all turns of the conversation."""
    made: dict[str, list[TrainingList]] = {f"conversations{part}": [] for part in ("", "-none", "-dev", "-test")}
    for conversation in _read("conversations"):
        turns = list(conversation_turns(conversation))
        part = {CONVERSATIONS_DEV_AUTHOR: "-dev", CONVERSATIONS_TEST_AUTHOR: "-test"}.get(conversation["author"])
        for question in conversation["questions"]:
            positives = [fields for name, fields in turns if name in question["right"]]
            negatives = [fields for name, fields in turns if name not in question["right"]]
            if part is None:
                adjacent = adjacent_turns(turns, question["right"])
                others = [each for each in negatives if each not in adjacent]
                negatives = _sample_turns(question["query"], others, rng) + adjacent
            made[f"conversations{part or ''}"].append(TrainingList(question["query"], positives, negatives))
        for query in conversation["none"]:
            all_turns = [fields for _, fields in turns]
            made[f"conversations{part or '-none'}"].append(
                TrainingList(query, [], all_turns if part else _sample_turns(query, all_turns, rng))
            )
    return made


def make_thread_lists(rng: random.Random) -> dict[str, list[TrainingList]]:
    """Questions of a user about their own messages to an assistant; half of the threads have the role in the text."""
    made: dict[str, list[TrainingList]] = {"threads": [], "threads-none": [], "threads-dev": []}
    for thread in _read("threads"):
        role = "user: " if rng.random() < 0.5 else ""
        messages = [{"text": role + each["text"], "mentioned_at": each["date"]} for each in thread["messages"]]
        is_dev = stable_hash(thread["messages"][0]["text"]) % DEV_FRACTION == 0
        for question in thread["questions"]:
            positives = [messages[i] for i in question["right"]]
            negatives = [message for i, message in enumerate(messages) if i not in question["right"]]
            made["threads-dev" if is_dev else "threads"].append(TrainingList(question["query"], positives, negatives))
        made["threads-dev" if is_dev else "threads-none"].append(TrainingList(thread["none"], [], messages))
    return made


def conversation_turns(conversation: dict[str, Any]) -> Iterator[tuple[str, Fields]]:
    """Yield the turns by name: `3:12` is the twelfth of the third session."""
    for session_number, session in enumerate(conversation["sessions"], 1):
        for turn_number, turn in enumerate(session["turns"], 1):
            photo = f" [photo: {turn['photo']}]" if turn.get("photo") else ""
            text = f"{turn['speaker']}: {turn['text']}{photo}"
            yield f"{session_number}:{turn_number}", {"text": text, "mentioned_at": session["date"]}


def adjacent_turns(turns: Sequence[tuple[str, Fields]], names: Sequence[str]) -> list[Fields]:
    """Return the turns just before and after the named ones: on the same subject, but no answer."""
    positions = [i for i, (name, _) in enumerate(turns) if name in names]
    adjacent = sorted({j for i in positions for j in (i - 1, i + 1) if 0 <= j < len(turns)} - set(positions))
    return [turns[i][1] for i in adjacent]


def add_dates(made: TrainingList, rng: random.Random) -> TrainingList:
    """Return the list with a random date for every memory, positive or negative."""
    kind = rng.choice(("world", "observation", None))

    def with_date(text: object) -> Fields:
        start = date(2012, 1, 1) + timedelta(days=rng.randrange(5000))
        fields: Fields = {"text": text, "occurred_start": start.isoformat()}
        if rng.random() < 0.3:
            fields["occurred_end"] = (start + timedelta(days=rng.randrange(1, 1500))).isoformat()
        return {**fields, "type": kind} if kind else fields

    return TrainingList(
        made.query, [with_date(text) for text in made.positives], [with_date(text) for text in made.negatives]
    )


def _read(name: str) -> Iterator[dict[str, Any]]:
    return read_records(DATA / f"{name}.jsonl.gz")


def _question_lists(memories: Sequence[str | Fields], questions: Sequence[Fields]) -> Iterator[TrainingList]:
    for question in questions:
        positive = memories[question["right"]]
        yield TrainingList(question["query"], [positive], [memory for memory in memories if memory != positive])


def _persona_lists(persona: dict[str, Any]) -> Iterator[TrainingList]:
    memories = persona["memories"]
    for turn in persona["turns"]:
        positives = [memories[i] for i in turn["right"]]
        earlier = [memory for memory in memories if memory["occurred_start"] <= turn["query_time"]]
        negatives = [memory for memory in earlier if memory not in positives]
        scores = bm25(turn["query"], [memory["text"] for memory in negatives])
        most_similar = (-scores).argsort(kind="stable")[:PERSONA_NEGATIVES]
        yield TrainingList(turn["query"], positives, [negatives[i] for i in most_similar])


def _hop_lists(group: dict[str, Any]) -> Iterator[TrainingList]:
    texts = [f"{paragraph['title']}: {paragraph['text']}" for paragraph in group["paragraphs"]]
    for question in group["questions"]:
        negatives = [text for i, text in enumerate(texts) if i not in question["right"]]
        yield TrainingList(question["query"], [texts[i] for i in question["right"]], negatives)


def _narrow(made: TrainingList, rng: random.Random) -> TrainingList:
    texts = [str(text) for text in made.negatives]
    chosen = similar_and_others(made.query, texts, SIMILAR_PARAGRAPHS, OTHER_PARAGRAPHS, rng)
    return replace(made, negatives=[made.negatives[i] for i in chosen])


def _sample_turns(query: str, turns: Sequence[Fields], rng: random.Random) -> list[Fields]:
    chosen = similar_and_others(query, [each["text"] for each in turns], SIMILAR_TURNS, OTHER_TURNS, rng)
    return [turns[i] for i in chosen]


def _add_some_dates(lists: Sequence[TrainingList], rng: random.Random) -> list[TrainingList]:
    """Add dates that mean nothing to some lists: a date alone must not change a score."""
    return [add_dates(each, rng) if rng.random() < DATED_SHARE else each for each in lists]
