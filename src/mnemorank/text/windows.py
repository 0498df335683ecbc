"""Cut a long text into overlapping windows that end on turn or sentence borders."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Span = tuple[int, int]

_SENTENCE_END = re.compile(r"[.!?…。！？][\"'”’)\]]*\s+")
_TURN_END = re.compile(r"\n+")
_WORD_END = re.compile(r"\s+")


def split(text: str, tokens: Sequence[Span], room: int, overlap: float = 0.2) -> list[Span]:
    """Windows of at most `room` tokens that cover the whole text, as character spans.

    A window ends on the last line break of its second half, else on the last sentence end there, else between two
    words, else between two tokens; it begins on such a border too, about `overlap` of a window before the last ended.

    :param tokens: the character span of each token of the text, in order.
    """
    if room < 1:
        raise ValueError(f"room for a window must be at least 1 token, got {room}")
    if len(tokens) <= room:
        return [(0, len(text))]
    starts = [start for start, _ in tokens]
    # Borders as token positions: a window may end before the token that follows the border.
    turns = _borders(_TURN_END, text, starts)
    sentences = sorted({*turns, *_borders(_SENTENCE_END, text, starts)})
    words = _borders(_WORD_END, text, starts)
    spans: list[Span] = []
    first = 0
    while True:
        limit = first + room
        if limit >= len(tokens):
            spans.append((starts[first] if first else 0, len(text)))
            return spans
        half = first + max(room // 2, 1)
        found = (_last_within(borders, half, limit) for borders in (turns, sentences, words))
        end = next((border for border in found if border is not None), limit)
        spans.append((starts[first] if first else 0, starts[end]))
        back = max(end - int(room * overlap), first + 1)
        found = (_first_within(borders, back, end) for borders in (sentences, words))
        first = next((border for border in found if border is not None), back)


def coarse_split(text: str, characters: int) -> list[Span]:
    """Parts of at most so many characters that cover the text, ending on line, sentence or word borders if they can."""
    spans: list[Span] = []
    start = 0
    while len(text) - start > characters:
        window = text[start : start + characters]
        end = characters
        for pattern in (_TURN_END, _SENTENCE_END, _WORD_END):
            borders = [match.end() for match in pattern.finditer(window, characters // 2)]
            if borders:
                end = borders[-1]
                break
        spans.append((start, start + end))
        start += end
    spans.append((start, len(text)))
    return spans


def best_windows(scores: NDArray[np.float64], most: int) -> list[int]:
    """Positions of the `most` best scores, in reading order; ties go to the earlier window.

    Where no window shares a word with the query, they are spread over the text: the beginning is no better guess.
    """
    if len(scores) > most and not scores.any():
        return [round(place * (len(scores) - 1) / max(most - 1, 1)) for place in range(most)]
    chosen = np.argsort(-scores, kind="stable")[:most]
    return sorted(int(position) for position in chosen)


def _borders(pattern: re.Pattern[str], text: str, starts: Sequence[int]) -> list[int]:
    return [
        position for match in pattern.finditer(text) if 0 < (position := bisect_left(starts, match.end())) < len(starts)
    ]


def _last_within(borders: Sequence[int], low: int, high: int) -> int | None:
    position = bisect_right(borders, high) - 1
    return borders[position] if position >= 0 and borders[position] >= low else None


def _first_within(borders: Sequence[int], low: int, high: int) -> int | None:
    position = bisect_left(borders, low)
    return borders[position] if position < len(borders) and borders[position] <= high else None
