"""MuSiQue: 2- to 4-hop questions with 20 paragraphs each; `is_supporting` marks the relevant ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mnemorank._internal.jsonio import read_json_records
from mnemorank.data.benchmarks.loader import Loader, field, labelled, loaders, objects
from mnemorank.data.examples import Example, text_of
from mnemorank.memory.memory import Memory


def read(path: Path) -> Iterator[Example]:
    """JSON Lines as published, or a JSON array. Questions of MuSiQue-Full that lack a hop are unanswerable."""
    for number, (where, record) in enumerate(read_json_records(path)):
        name = str(record.get("id", number))
        answerable = record.get("answerable", True) is not False
        memories, relevant = [], []
        for index, paragraph in enumerate(objects(record, "paragraphs", where)):
            here = f"{where}: paragraphs {index}"
            title, text = text_of(paragraph, "title", here), text_of(paragraph, "paragraph_text", here)
            memories.append(Memory(f"{title}: {text}", id=str(paragraph.get("idx", index))))
            relevant.append(answerable and field(paragraph, "is_supporting", bool, here))
        yield Example(
            id=name if answerable else f"{name}:unanswerable",
            query=text_of(record, "question", where),
            candidates=labelled(memories, relevant),
            group=name,
            source="musique",
            kind=name.split("_")[0] if "hop" in name.split("_")[0] else None,
            answerable=answerable,
        )


loaders.add(Loader("musique", "MuSiQue, paragraphs as candidates", read))
