"""Questions too long for a model are read by their end: a turn of a chat asks there."""

from __future__ import annotations

from collections.abc import Sequence

from mnemorank.errors import QueryTooLongError
from mnemorank.memory import Memory
from mnemorank.model import Scored, Scoring

_LONGEST_WORD = 40


def score_by_the_end(
    model: Scoring,
    query: str,
    memories: Sequence[Memory],
    *,
    instruction: str | None = None,
    deadline: float | None = None,
) -> tuple[Scored, str]:
    """The scores, and what of the query was read: all of it, or its end where the whole leaves a memory no room."""
    asked = query
    while True:
        try:
            return model.score(asked, memories, instruction=instruction, deadline=deadline), asked
        except QueryTooLongError as error:
            asked = end_of(asked, error.most / (2 * error.tokens))
            if not asked.strip():
                raise


def end_of(text: str, share: float) -> str:
    """The last share of a text, from the beginning of a word where there is one near: not every script parts them."""
    start = len(text) - int(len(text) * share)
    border = text.find(" ", start, start + _LONGEST_WORD)
    return text[border + 1 :] if 0 <= border < len(text) - 1 else text[start:]
