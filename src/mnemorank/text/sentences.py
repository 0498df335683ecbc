"""Short excerpts of a text, for a closer look: every two sentences that follow each other, under their heading.

A model of few layers that reads a whole paragraph overlooks the one sentence that answers; shown that sentence and its
neighbour alone, it does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

_SENTENCE_END = re.compile(
    r"(?:(?<=[.!?…])|(?<=[.!?…][\"'”’)\]]))\s+(?![a-z])"  # not after `e.g.`
    r"|(?<=[。！？])(?![。！？」』”’）])"
)
# What is shorter is no sentence of its own (`Dr.`, `6.`, `No!`) and goes with the next one.
_SHORT = 20
_HEADING = re.compile(r"([^\n]{2,60}?): ")


def excerpts(text: str) -> list[str]:
    """None of a text of two sentences or fewer, which is an excerpt itself."""
    sentences = [sentence for sentence in _sentences(text) if sentence[1]]
    if len(sentences) < 3:
        return []
    return [_joined(*pair) for pair in pairwise(sentences)]


def heading_of(text: str) -> str:
    """Return the heading that a text begins with (`Orlo Vantage: `), or `""`."""
    found = _HEADING.match(text)
    return found[0] if found else ""


def _sentences(text: str) -> Iterator[tuple[str, str]]:
    """The sentences, each with the heading it is under: that of its line, else the last one before."""
    heading = ""
    for line in text.splitlines():
        stated = heading_of(line)
        if stated and not _SENTENCE_END.search(stated):
            heading, line = stated, line[len(stated) :]
        begun = ""
        for part in _SENTENCE_END.split(line.strip()):
            begun = f"{begun} {part}".strip()
            if len(begun) >= _SHORT:
                yield heading, begun
                begun = ""
        yield heading, begun


def _joined(first: tuple[str, str], second: tuple[str, str]) -> str:
    """Two sentences, the second on a line of its own where it is under another heading: another's turn of a chat."""
    between = " " if first[0] == second[0] else "\n" + second[0]
    return first[0] + first[1] + between + second[1]
