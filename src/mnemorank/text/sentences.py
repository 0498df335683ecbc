"""Split texts into sentences, and into excerpts of two sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

# A good place to cut a text: also after abbreviations, but never without white space.
SENTENCE_BOUNDARY = re.compile(r"[.!?…。！？][\"'”’)\]]*\s+")
_SENTENCE_END = re.compile(
    r"(?:(?<=[.!?…])|(?<=[.!?…][\"'”’)\]]))\s+(?![a-z])"  # not after `e.g.`
    r"|(?<=[。！？])(?![。！？」』”’）])"
)
_LINE_OR_SENTENCE_BOUNDARY = re.compile(rf"{SENTENCE_BOUNDARY.pattern}|\n+")
# Shorter pieces (`Dr.`, `6.`, `No!`) are joined with the sentence that follows.
_MIN_LENGTH = 20
_HEADING = re.compile(r"([^\n]{2,60}?): ")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text. A line break ends a sentence; a very short one is part of the next."""
    return [sentence for line in text.splitlines() for sentence in _split_line(line)]


def sentence_starts(text: str) -> list[int]:
    """Return the positions where a sentence or line begins, from 0."""
    ends = (match.end() for match in _LINE_OR_SENTENCE_BOUNDARY.finditer(text))
    return [0, *(end for end in ends if end < len(text))]


def excerpts(text: str) -> list[str]:
    """Return every two consecutive sentences, under the heading of their line; none if the text has fewer than three.

    A small model that reads a whole paragraph can miss the one sentence that answers. It finds the answer when it reads
    only that sentence and its neighbor.
    """
    sentences = list(_sentences_with_heading(text))
    if len(sentences) < 3:
        return []
    return [_join(*pair) for pair in pairwise(sentences)]


def heading_of(text: str) -> str:
    """Return the heading at the beginning of a text, such as `Orlo Vantage: `, or `""`."""
    match = _HEADING.match(text)
    return match[0] if match else ""


def _split_line(line: str) -> Iterator[str]:
    sentence = ""
    for part in _SENTENCE_END.split(line.strip()):
        sentence = f"{sentence} {part}".strip()
        if len(sentence) >= _MIN_LENGTH:
            yield sentence
            sentence = ""
    if sentence:
        yield sentence


def _sentences_with_heading(text: str) -> Iterator[tuple[str, str]]:
    """Yield the heading and text of each sentence. The heading is that of its line, else the last one before."""
    heading = ""
    for line in text.splitlines():
        line_heading = heading_of(line)
        if line_heading and not _SENTENCE_END.search(line_heading):
            heading, line = line_heading, line[len(line_heading) :]
        for sentence in _split_line(line):
            yield heading, sentence


def _join(first: tuple[str, str], second: tuple[str, str]) -> str:
    """Join two sentences; one under another heading, such as another speaker's turn, gets its own line and heading."""
    separator = " " if first[0] == second[0] else "\n" + second[0]
    return first[0] + first[1] + separator + second[1]
