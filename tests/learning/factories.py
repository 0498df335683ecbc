"""Events for the tests."""

from __future__ import annotations

from mnemorank import Memory
from mnemorank.learning.events import RerankEvent, ShownMemory


def make_event(query: str = "Where does Ruby work?", texts: tuple[str, ...] = ("a", "b", "c"), **fields) -> RerankEvent:
    """An event that shows memories with the ids `m-TEXT`."""
    shown = tuple(
        ShownMemory(rank, Memory(text, id=f"m-{text}"), f"m-{text}", relevance=0.5, raw_score=0.0)
        for rank, text in enumerate(texts, 1)
    )
    return RerankEvent(query, shown, fields.pop("model_version", "v1"), **fields)
