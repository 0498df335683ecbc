"""MuSiQue: 2- to 4-hop questions with 20 paragraphs each; those with `is_supporting` are relevant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mnemorank.data.benchmarks.loader import Loader, get_field, get_objects, label_candidates, loaders
from mnemorank.data.examples import Example
from mnemorank.data.formats import required_text
from mnemorank.data.json_records import read_json_records
from mnemorank.memory.memory import Memory


def read(path: Path) -> Iterator[Example]:
    """Yield the questions of JSON Lines or a JSON array. Those of MuSiQue-Full that lack a hop are unanswerable."""
    for number, (where, record) in enumerate(read_json_records(path)):
        name = str(record.get("id", number))
        answerable = record.get("answerable", True) is not False
        memories, relevant = [], []
        for index, paragraph in enumerate(get_objects(record, "paragraphs", where)):
            here = f"{where}: paragraphs {index}"
            title, text = required_text(paragraph, "title", here), required_text(paragraph, "paragraph_text", here)
            memories.append(Memory(f"{title}: {text}", id=str(paragraph.get("idx", index))))
            relevant.append(answerable and get_field(paragraph, "is_supporting", bool, here))
        yield Example(
            id=name if answerable else f"{name}:unanswerable",
            query=required_text(record, "question", where),
            candidates=label_candidates(memories, relevant),
            group=name,
            source="musique",
            kind=name.split("_")[0] if "hop" in name.split("_")[0] else None,
            answerable=answerable,
        )


loaders.add(Loader("musique", "MuSiQue, paragraphs as candidates", read))
