"""Names and hashes that stay the same from one mining to the next."""

from __future__ import annotations

import hashlib

from mnemorank.memory.memory import Memory

SEPARATOR = "\x1f"


def named(tenant: str, name: str) -> str:
    """A user's or memory's name within its tenant, as a source."""
    return tenant + SEPARATOR + name


def told_apart(words: str, memory: Memory) -> str:
    """What makes two memories the same: their words, and what the model reads beside them. Of plain texts, the words.

    :param words: the memory's text, or a hash of it.
    """
    told = (
        memory.context, memory.occurred_start, memory.occurred_end, memory.mentioned_at, memory.speaker, memory.type,
    )  # fmt: skip
    if not any(told):
        return words
    return SEPARATOR.join([words, *("" if each is None else str(each) for each in told)])


def text_hash_of(identity: str) -> str:
    """The hash of the text in a `Shown.identity`."""
    return identity.partition(SEPARATOR)[0]


def digest(*parts: str) -> str:
    return hashlib.blake2b(SEPARATOR.join(parts).encode("utf-8", "replace"), digest_size=10).hexdigest()
