"""Cut a long text into overlapping windows that end on turn, sentence or word borders."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mnemorank.text.sentences import SENTENCE_BORDER

# The start and end of a part of a text, in characters.
Span = tuple[int, int]

_TURN_BORDER = re.compile(r"\n+")
_WORD_BORDER = re.compile(r"\s+")


def split(text: str, tokens: Sequence[Span], room: int, overlap: float = 0.2) -> list[Span]:
    """Return windows of at most `room` tokens that cover the whole text.

    A window ends at the last line break in its second half, else at the last sentence end there, else between two
    words, else between two tokens. The next window begins at such a border, too, about `overlap` of a window before.

    :param tokens: the span of each token of the text, in order.
    """
    if room < 1:
        raise ValueError(f"room: expected at least 1 token, got {room}")
    if len(tokens) <= room:
        return [(0, len(text))]
    starts = [start for start, _ in tokens]
    # Borders as token positions: a window may end before the token that follows the border.
    token_starts = np.array(starts, dtype=np.int64)
    turns = _borders(_TURN_BORDER, text, token_starts)
    sentences = sorted({*turns, *_borders(SENTENCE_BORDER, text, token_starts)})
    words = _borders(_WORD_BORDER, text, token_starts)
    spans: list[Span] = []
    first = 0
    while True:
        limit = first + room
        if limit >= len(tokens):
            spans.append((starts[first] if first else 0, len(text)))
            return spans
        half = first + max(room // 2, 1)
        ends = (_last_within(borders, half, limit) for borders in (turns, sentences, words))
        end = next((border for border in ends if border is not None), limit)
        spans.append((starts[first] if first else 0, starts[end]))
        earliest = max(end - int(room * overlap), first + 1)
        begins = (_first_within(borders, earliest, end) for borders in (sentences, words))
        first = next((border for border in begins if border is not None), earliest)


def coarse_split(text: str, characters: int) -> list[Span]:
    """Return spans of at most `characters` that cover the text, cut at line, sentence or word borders if possible."""
    spans: list[Span] = []
    start = 0
    while len(text) - start > characters:
        window = text[start : start + characters]
        end = characters
        for pattern in (_TURN_BORDER, SENTENCE_BORDER, _WORD_BORDER):
            borders = [match.end() for match in pattern.finditer(window, characters // 2)]
            if borders:
                end = borders[-1]
                break
        spans.append((start, start + end))
        start += end
    spans.append((start, len(text)))
    return spans


def best_windows(scores: NDArray[np.float64], count: int) -> list[int]:
    """Return the positions of the best scores in reading order; the earlier window wins a tie.

    If all scores are 0, the positions are spread over the text, since its beginning is no better guess than the rest.
    """
    if len(scores) > count and not scores.any():
        return [round(place * (len(scores) - 1) / max(count - 1, 1)) for place in range(count)]
    best = np.argsort(-scores, kind="stable")[:count]
    return sorted(int(position) for position in best)


def _borders(pattern: re.Pattern[str], text: str, starts: NDArray[np.int64]) -> list[int]:
    ends = np.array([match.end() for match in pattern.finditer(text)], dtype=np.int64)
    positions = np.searchsorted(starts, ends)
    borders: list[int] = positions[(positions > 0) & (positions < len(starts))].tolist()
    return borders


def _last_within(borders: Sequence[int], low: int, high: int) -> int | None:
    position = bisect_right(borders, high) - 1
    return borders[position] if position >= 0 and borders[position] >= low else None


def _first_within(borders: Sequence[int], low: int, high: int) -> int | None:
    position = bisect_left(borders, low)
    return borders[position] if position < len(borders) and borders[position] <= high else None
