"""A closer look: what leads a ranking and is long is read again, by excerpts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mnemorank.errors import MnemorankError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Scored
from mnemorank.text.bm25 import bm25
from mnemorank.text.sentences import excerpts
from mnemorank.text.windows import best_windows

# Of a memory of many sentences so many excerpts are read, the best by BM25.
_MOST = 16


def look_closer(
    query: str,
    ask: Callable[[Sequence[Memory]], Scored],
    pool: Sequence[Memory],
    leaders: Sequence[int],
    scored: Scored,
    report: Callable[[str], None],
) -> Scored:
    """The scores with the best of each leader's excerpts; as they were where the model fails now, or the deadline comes
    first: leaders that were looked at and others do not compare.

    :param ask: scores memories for the query.
    :param leaders: positions in the pool.
    """
    read = [(i, text) for i in leaders for text in _worth_reading(query, scored.passage(i, pool[i]))]
    if not read:
        return scored
    try:
        again = ask([replace(pool[i], text=text) for i, text in read])
    except MnemorankError as error:
        report(f"no closer look at the best memories: {error}")
        return scored
    if again.manifest != scored.manifest or np.isnan(again.raw).any():
        return scored  # another model answered, in scores of its own, or time was up
    owners = np.array([i for i, _ in read])
    closer = np.full(len(pool), np.nan)
    for i in np.unique(owners):
        closer[_same(pool, scored, i)] = again.raw[owners == i].max()
    return replace(scored, closer=closer)


def _worth_reading(query: str, passage: str) -> list[str]:
    found = excerpts(passage)
    return [found[i] for i in best_windows(bm25(query, found), _MOST)] if len(found) > _MOST else found


def _same(pool: Sequence[Memory], scored: Scored, leader: int) -> list[int]:
    """Positions of the memories that say the same as the leader, which are worth the same: itself, and its copies."""
    text, raw = pool[leader].text, scored.raw[leader]
    return [i for i, memory in enumerate(pool) if memory.text == text and np.isclose(scored.raw[i], raw, atol=1e-4)]
