"""A closer look: what leads a ranking and is long is read again, by excerpts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from mnemorank.errors import ScorerError
from mnemorank.memory import Memory
from mnemorank.model import Scored
from mnemorank.ranking.excerpts import excerpts


def look_closer(
    ask: Callable[[Sequence[Memory]], Scored],
    pool: Sequence[Memory],
    leaders: Sequence[int],
    scored: Scored,
    report: Callable[[str], None],
) -> Scored:
    """The scores with the best of each leader's excerpts; as they were where the model fails now.

    :param ask: scores memories for the query.
    :param leaders: positions in the pool.
    """
    read = [(i, text) for i in leaders for text in excerpts(scored.passage(i, pool[i]))]
    if not read:
        return scored
    try:
        again = ask([replace(pool[i], text=text) for i, text in read])
    except ScorerError as error:
        report(f"no closer look at the best memories: {error}")
        return scored
    if again.manifest != scored.manifest:
        return scored  # another model answered, in scores of its own
    owners = np.array([i for i, _ in read])
    closer = np.full(len(pool), np.nan)
    for i in np.unique(owners):
        # NaN where the deadline came first: a part of the excerpts says nothing about their best.
        closer[i] = again.raw[owners == i].max()
    return replace(scored, closer=closer)
