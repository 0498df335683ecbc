"""Everyday memory stores: a JSON list of small stores, each with its memories and questions about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mnemorank.data.benchmarks.loader import Loader, get_field, get_objects, loaders
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import optional_moment, optional_text, required_text
from mnemorank.data.json_records import read_json_records
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
        for where, store in read_json_records(file):
            yield from _read_store(store, where)


def _read_store(store: dict[str, Any], where: str) -> Iterator[Example]:
    author = optional_text(store, "author", where)
    name = required_text(store, "store", where)
    group = f"{author}/{name}" if author else name
    memories = _memories(store, where)
    for number, question in enumerate(get_objects(store, "questions", where)):
        yield _read_question(question, f"{where}: questions.{number}", f"{group}:{number}", group, memories)


def _read_question(question: dict[str, Any], where: str, id: str, group: str, memories: dict[str, Memory]) -> Example:
    kind = required_text(question, "kind", where)
    relevant, outdated, partly = (_ids(question, key, memories, where) for key in ("relevant", "outdated", "partly"))
    conflicts = relevant & (outdated | partly)
    if conflicts:
        raise InputError(f"{min(conflicts)!r} is also outdated or partly relevant", field="relevant", location=where)
    if bool(relevant) == (kind == UNANSWERABLE):
        expected = "no ids" if kind == UNANSWERABLE else "at least one id"
        raise InputError(f"expected {expected} for a question of kind {kind!r}", field="relevant", location=where)
    candidate_ids = [memory_id for memory_id in memories if memory_id not in partly]
    position = {memory_id: i for i, memory_id in enumerate(candidate_ids)}
    return Example(
        id=id,
        query=required_text(question, "query", where),
        candidates=tuple(Candidate(memories[memory_id], float(memory_id in relevant)) for memory_id in candidate_ids),
        query_time=optional_moment(question, "now", where),
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


def _memories(store: dict[str, Any], where: str) -> dict[str, Memory]:
    memories: dict[str, Memory] = {}
    for index, record in enumerate(get_objects(store, "memories", where)):
        path = f"memories.{index}"
        memory_id = required_text(record, "id", f"{where}: {path}")
        if memory_id in memories:
            raise InputError(f"{memory_id!r} is used twice", field=f"{path}.id", location=where)
        memories[memory_id] = Memory.of(record, path=path, location=where)
    return memories


def _ids(question: dict[str, Any], key: str, memories: dict[str, Memory], where: str) -> set[str]:
    ids = get_field(question, key, list, where) if key in question else []
    for memory_id in ids:
        if not isinstance(memory_id, str) or memory_id not in memories:
            raise InputError(f"{memory_id!r:.60} is not the id of a memory", field=key, location=where)
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
