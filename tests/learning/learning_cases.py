"""Events for the tests."""

from __future__ import annotations

from mnemorank import Memory
from mnemorank.learning.events import Event, Shown


def make_event(query: str = "Where does Ruby work?", texts: tuple[str, ...] = ("a", "b", "c"), **fields) -> Event:
    shown = tuple(
        Shown(position, Memory(text, id=f"m-{text}"), f"m-{text}", relevance=0.5, raw_score=0.0)
        for position, text in enumerate(texts)
    )
    return Event(query, shown, fields.pop("model_version", "v1"), **fields)
