"""Listening to the user: memory is asked for what the user said far more often than for what was replied.

Replies are long and repeat a question's words, while the fact is in what the user said in passing. So the user's own
words count again in BM25 over a pool, and of a long session the model reads the user's turns one by one. Where no
roles are told, or names stand for them, nobody is known to be the user and every word counts alike.
"""

from __future__ import annotations

import re
from itertools import pairwise

from mnemorank.text.windows import Span

_REPLYING = frozenset(("ai", "assistant", "bot", "system", "tool"))
_OF_A_CHAT = frozenset(("user", "human", "assistant"))
_TURN = re.compile(rf"^(user|human|{'|'.join(sorted(_REPLYING))}):", re.IGNORECASE | re.MULTILINE)


def is_reply(speaker: str | None) -> bool:
    """Return whether a turn's speaker is an assistant, a system or a tool rather than a user."""
    return bool(speaker) and str(speaker).strip().casefold() in _REPLYING


def user_text(text: str) -> str:
    """Return what the user says in a chat; any other text whole."""
    turns = _turns(text)
    return "".join(text[slice(*span)] for span, of_user in turns if of_user) if turns else text


def user_turns(text: str) -> list[Span]:
    """Where the user speaks in a chat, in order, and what stands before its first turn; nothing in other texts."""
    return [span for span, of_user in _turns(text) if of_user and without_role(text[slice(*span)]).strip()]


def without_role(text: str) -> str:
    """The text without the role that it begins with: `user: I moved` is about the move, not about a user."""
    begun = _TURN.match(text)
    return text[begun.end() :].lstrip() if begun else text


def _turns(text: str) -> list[tuple[Span, bool]]:
    """The turns of a chat, and whether each is the user's. A text without roles has none."""
    begun = list(_TURN.finditer(text))
    if not any(turn[1].casefold() in _OF_A_CHAT for turn in begun):
        return []  # "System: postgres 15" is a line of a note
    borders = [0, *(turn.start() for turn in begun), len(text)]
    of_user = [True, *(turn[1].casefold() not in _REPLYING for turn in begun)]
    return list(zip(pairwise(borders), of_user, strict=True))
