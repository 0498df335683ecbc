"""Everyday memory stores: a JSON list of small stores, each with its memories and questions about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mnemorank.data.benchmarks.loader import Loader, loaders
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.records import Record, read_records
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory

UNANSWERABLE = "none"
"""The kind of the questions that no memory answers."""


def files(path: Path) -> list[Path]:
    """Return the file itself, or all JSON files of a folder."""
    if not path.is_dir():
        return [path]
    paths = sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz", ".json.zst")))
    if not paths:
        raise InputError("contains no JSON files", code="empty", location=str(path))
    return paths


def read(path: Path) -> Iterator[Example]:
    """Yield the questions of all stores, with the memories of the store as candidates.

    `relevant` memories are labeled 1; all others, including `outdated` ones, 0. Memories that are `partly` relevant are
    left out, since either label would be arguable. The pairs of an example are its relevant with its outdated memories.
    """
    for file in files(path):
        for store in read_records(file):
            yield from _read_store(store)


def _read_store(store: Record) -> Iterator[Example]:
    author = store.optional_text("author")
    name = store.text("store")
    group = f"{author}/{name}" if author else name
    memories = _memories(store)
    for number, question in enumerate(store.objects("questions")):
        yield _read_question(question, f"{group}:{number}", group, memories)


def _read_question(question: Record, id: str, group: str, memories: dict[str, Memory]) -> Example:
    kind = question.text("kind")
    relevant, outdated, partly = (_ids(question, key, memories) for key in ("relevant", "outdated", "partly"))
    conflicts = relevant & (outdated | partly)
    if conflicts:
        raise question.error(f"{min(conflicts)!r} is also outdated or partly relevant", "relevant")
    if bool(relevant) == (kind == UNANSWERABLE):
        expected = "no ids" if kind == UNANSWERABLE else "at least one id"
        raise question.error(f"expected {expected} for a question of kind {kind!r}", "relevant")
    candidate_ids = [memory_id for memory_id in memories if memory_id not in partly]
    position = {memory_id: i for i, memory_id in enumerate(candidate_ids)}
    return Example(
        id=id,
        query=question.text("query"),
        candidates=tuple(Candidate(memories[memory_id], float(memory_id in relevant)) for memory_id in candidate_ids),
        query_time=question.moment("now"),
        group=group,
        source="everyday",
        kind=kind,
        answerable=kind != UNANSWERABLE,
        pairs=tuple(
            (position[current], position[old])
            for current in sorted(relevant, key=position.__getitem__)
            for old in sorted(outdated - partly, key=position.__getitem__)
        ),
    )


def _memories(store: Record) -> dict[str, Memory]:
    memories: dict[str, Memory] = {}
    for record in store.objects("memories"):
        memory_id = record.text("id")
        if memory_id in memories:
            raise record.error(f"{memory_id!r} is used twice", "id")
        memories[memory_id] = Memory.of(record.values, path=record.path, location=record.location)
    return memories


def _ids(question: Record, key: str, memories: dict[str, Memory]) -> set[str]:
    ids = question.optional_list(key)
    for memory_id in ids:
        if not isinstance(memory_id, str) or memory_id not in memories:
            raise question.error(f"{memory_id!r:.60} is not the id of a memory", key)
    return set(ids)


loaders.add(
    Loader(
        "everyday",
        "everyday memory stores, with all memories of a store as candidates",
        read,
        files,
        pairs_metric="outdated_below_current",
    )
)
