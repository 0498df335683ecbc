"""Everyday memory stores: a JSON list of small stores, each with its memories and questions about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mnemorank.data.benchmarks.loader import Loader, get_field, get_objects, loaders
from mnemorank.data.examples import Candidate, Example
from mnemorank.data.formats import optional_text, required_text
from mnemorank.data.json_records import read_json_records
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment

UNANSWERABLE = "none"
"""The kind of the questions that no memory answers."""


def files(path: Path) -> list[Path]:
    """Return the file itself, or all JSON files of a folder."""
    if not path.is_dir():
        return [path]
    paths = sorted(p for p in path.iterdir() if p.name.endswith((".json", ".json.gz", ".json.zst")))
    if not paths:
        raise InputError(f"{path}: contains no JSON files", code="empty")
    return paths


def read(path: Path) -> Iterator[Example]:
    """Yield the questions of all stores, with the memories of the store as candidates.

    `relevant` memories are labeled 1; all others, including `outdated` ones, 0. `partly` relevant ones are left out.
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
        here = f"{where}: questions {number}"
        relevant, outdated, partly = (_ids(question, key, memories, here) for key in ("relevant", "outdated", "partly"))
        kind = required_text(question, "kind", here)
        if relevant & (outdated | partly):
            raise InputError(f"{here}: relevant: {min(relevant & (outdated | partly))!r} is also outdated or partly")
        if bool(relevant) == (kind == UNANSWERABLE):
            raise InputError(f"{here}: relevant: expected ids, and none for kind {UNANSWERABLE!r}; kind is {kind!r}")
        yield Example(
            id=f"{group}:{number}",
            query=required_text(question, "query", here),
            candidates=tuple(
                Candidate(memory, float(id in relevant)) for id, memory in memories.items() if id not in partly
            ),
            query_time=_now(question, here),
            group=group,
            source="everyday",
            kind=kind,
            answerable=kind != UNANSWERABLE,
        )


def _memories(store: dict[str, Any], where: str) -> dict[str, Memory]:
    memories: dict[str, Memory] = {}
    for index, record in enumerate(get_objects(store, "memories", where)):
        here = f"{where}: memories {index}"
        id = required_text(record, "id", here)
        if id in memories:
            raise InputError(f"{here}: id: {id!r} is used twice")
        memories[id] = Memory.of(record, location=here)
    return memories


def _ids(question: dict[str, Any], key: str, memories: dict[str, Memory], where: str) -> set[str]:
    ids = get_field(question, key, list, where) if key in question else []
    for id in ids:
        if id not in memories:
            raise InputError(f"{where}: {key}: {id!r} is not the id of a memory")
    return set(ids)


def _now(question: dict[str, Any], where: str) -> Moment | None:
    now = optional_text(question, "now", where)
    try:
        return Moment.parse(now) if now else None
    except InputError as error:
        raise InputError(f"{where}: now: {error}") from None


loaders.add(Loader("everyday", "everyday memory stores, all memories of a store as candidates", read, files))
