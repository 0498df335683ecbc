"""What a report shows of a memory."""

from __future__ import annotations

from mnemorank.memory.memory import Memory
from mnemorank.text.sentences import sentence_starts
from mnemorank.text.words import terms

LENGTH = 320


def excerpt(query: str, memory: Memory, length: int = LENGTH) -> str:
    """Date and text; of a long text, from the sentence that shares most words with the query on."""
    text = " ".join(memory.text.split()) if len(memory.text) <= length else _best_part(query, memory.text, length)
    dates = " – ".join(str(date) for date in (memory.occurred_start, memory.occurred_end) if date)
    shown = dates or (str(memory.mentioned_at) if memory.mentioned_at else "")
    ongoing = " – ongoing" if memory.is_ongoing else ""
    return f"[{shown}{ongoing}] {text}" if shown else text


def _best_part(query: str, text: str, length: int) -> str:
    asked = set(terms(query))
    starts = sentence_starts(text[:100_000])
    ends = [*starts[1:], len(text)]
    shared = [len(asked & set(terms(text[a : min(b, a + 2000)]))) for a, b in zip(starts, ends, strict=True)]
    start = starts[shared.index(max(shared))]
    cut = " ".join(text[start : start + length * 2].split())
    ends_here = len(cut) <= length and start + length * 2 >= len(text)
    return ("… " if start else "") + (cut if ends_here else cut[: length - 1].rstrip() + "…")
