"""Cut a long text into overlapping windows that end on turn, sentence or word boundaries."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mnemorank.text.sentences import SENTENCE_BOUNDARY

# The start and end of a part of a text, in characters.
Span = tuple[int, int]

_TURN_BOUNDARY = re.compile(r"\n+")
_WORD_BOUNDARY = re.compile(r"\s+")


def split(text: str, tokens: Sequence[Span], room: int, overlap: float = 0.2) -> list[Span]:
    """Return windows of at most `room` tokens that cover the whole text.

    A window ends at the last line break in its second half, else at the last sentence end there, else between two
    words, else between two tokens. The next window begins at such a boundary, too, about `overlap` of a window before.

    :param tokens: the span of each token of the text, in order.
    """
    if room < 1:
        raise ValueError(f"room: expected at least 1 token, got {room}")
    if len(tokens) <= room:
        return [(0, len(text))]
    starts = [start for start, _ in tokens]
    # Boundaries as token positions: a window may end before the token that follows the boundary.
    token_starts = np.array(starts, dtype=np.int64)
    turns = _boundaries(_TURN_BOUNDARY, text, token_starts)
    sentences = sorted({*turns, *_boundaries(SENTENCE_BOUNDARY, text, token_starts)})
    words = _boundaries(_WORD_BOUNDARY, text, token_starts)
    spans: list[Span] = []
    first = 0
    while True:
        limit = first + room
        if limit >= len(tokens):
            spans.append((starts[first] if first else 0, len(text)))
            return spans
        half = first + max(room // 2, 1)
        ends = (_last_within(boundaries, half, limit) for boundaries in (turns, sentences, words))
        end = next((boundary for boundary in ends if boundary is not None), limit)
        spans.append((starts[first] if first else 0, starts[end]))
        earliest = max(end - int(room * overlap), first + 1)
        begins = (_first_within(boundaries, earliest, end) for boundaries in (sentences, words))
        first = next((boundary for boundary in begins if boundary is not None), earliest)


def coarse_split(text: str, characters: int) -> list[Span]:
    """Return spans of at most `characters` that cover the text, cut at lines, sentences or words if possible."""
    spans: list[Span] = []
    start = 0
    while len(text) - start > characters:
        window = text[start : start + characters]
        end = characters
        for pattern in (_TURN_BOUNDARY, SENTENCE_BOUNDARY, _WORD_BOUNDARY):
            boundaries = [match.end() for match in pattern.finditer(window, characters // 2)]
            if boundaries:
                end = boundaries[-1]
                break
        spans.append((start, start + end))
        start += end
    spans.append((start, len(text)))
    return spans


def best_windows(scores: NDArray[np.float64], count: int) -> list[int]:
    """Return the positions of the best scores in reading order; the earlier window wins a tie.

    If all scores are 0, the positions are spread over the text, since no part is a better guess than another.
    """
    if len(scores) > count and not scores.any():
        return [round(place * (len(scores) - 1) / max(count - 1, 1)) for place in range(count)]
    best = np.argsort(-scores, kind="stable")[:count]
    return sorted(int(position) for position in best)


def _boundaries(pattern: re.Pattern[str], text: str, starts: NDArray[np.int64]) -> list[int]:
    ends = np.array([match.end() for match in pattern.finditer(text)], dtype=np.int64)
    positions = np.searchsorted(starts, ends)
    boundaries: list[int] = positions[(positions > 0) & (positions < len(starts))].tolist()
    return boundaries


def _last_within(boundaries: Sequence[int], low: int, high: int) -> int | None:
    position = bisect_right(boundaries, high) - 1
    return boundaries[position] if position >= 0 and boundaries[position] >= low else None


def _first_within(boundaries: Sequence[int], low: int, high: int) -> int | None:
    position = bisect_left(boundaries, low)
    return boundaries[position] if position < len(boundaries) and boundaries[position] <= high else None
