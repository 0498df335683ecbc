"""MuSiQue: 2- to 4-hop questions with 20 paragraphs each; those with `is_supporting` are relevant."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mnemorank.data.benchmarks.loader import Loader, label_candidates, loaders
from mnemorank.data.examples import Example
from mnemorank.data.records import read_records
from mnemorank.memory.memory import Memory


def read(path: Path) -> Iterator[Example]:
    """Yield the questions of JSON Lines or a JSON array. Those of MuSiQue-Full that lack a hop are unanswerable."""
    for number, record in enumerate(read_records(path)):
        name = str(record.values.get("id", number))
        answerable = record.values.get("answerable", True) is not False
        memories, relevant = [], []
        for index, paragraph in enumerate(record.objects("paragraphs")):
            title, text = paragraph.text("title"), paragraph.text("paragraph_text")
            memories.append(Memory(f"{title}: {text}", id=str(paragraph.values.get("idx", index))))
            relevant.append(answerable and paragraph.get("is_supporting", bool))
        yield Example(
            id=name if answerable else f"{name}:unanswerable",
            query=record.text("question"),
            candidates=label_candidates(memories, relevant),
            group=name,
            source="musique",
            kind=name.split("_")[0] if "hop" in name.split("_")[0] else None,
            answerable=answerable,
        )


loaders.add(Loader("musique", "MuSiQue, paragraphs as candidates", read))
