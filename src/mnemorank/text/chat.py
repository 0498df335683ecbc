"""Separate the user's words from the replies in a chat.

Questions to a memory are mostly about what the user said. Replies are long and repeat the words of a question, while
the fact is in something the user mentioned in passing. So BM25 counts the user's words once more, and the model reads
the user's turns of a long session one by one. If a text has no roles, or names in their place, all words count equally.
"""

from __future__ import annotations

import re
from itertools import pairwise

from mnemorank.text.windows import Span

_REPLY_ROLES = frozenset(("ai", "assistant", "bot", "system", "tool"))
# Without one of these, a line such as `System: postgres 15` belongs to a note, not to a chat.
_CHAT_ROLES = frozenset(("user", "human", "assistant"))
_TURN = re.compile(rf"^(user|human|{'|'.join(sorted(_REPLY_ROLES))}):", re.IGNORECASE | re.MULTILINE)


def is_reply(speaker: str | None) -> bool:
    """Return whether the speaker of a turn is an assistant, a system or a tool."""
    return bool(speaker) and str(speaker).strip().casefold() in _REPLY_ROLES


def user_text(text: str) -> str:
    """Return what the user says in a chat, or the whole text if it is not a chat."""
    turns = _turns(text)
    return "".join(text[slice(*span)] for span, is_user in turns if is_user) if turns else text


def user_turns(text: str) -> list[Span]:
    """Return the spans of the user's turns, and of what precedes the first turn; none if the text is not a chat."""
    return [span for span, is_user in _turns(text) if is_user and without_role(text[slice(*span)]).strip()]


def without_role(text: str) -> str:
    """Return the text without the role it begins with: `user: I moved` becomes `I moved`."""
    match = _TURN.match(text)
    return text[match.end() :].lstrip() if match else text


def _turns(text: str) -> list[tuple[Span, bool]]:
    """Return the span of each turn and whether it is the user's; none if the text is not a chat."""
    starts = list(_TURN.finditer(text))
    if not any(turn[1].casefold() in _CHAT_ROLES for turn in starts):
        return []
    boundaries = [0, *(turn.start() for turn in starts), len(text)]
    is_user = [True, *(turn[1].casefold() not in _REPLY_ROLES for turn in starts)]
    return list(zip(pairwise(boundaries), is_user, strict=True))
