"""BM25 over a pool of texts, with numpy only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.deadline import Deadline
from mnemorank.text.words import terms

K1, B = 1.2, 0.75
# Bounds the memory of a large pool with a very long query.
_MAX_QUERY_TERMS = 256


def bm25(query: str, texts: Sequence[str], *, deadline: Deadline | None = None) -> NDArray[np.float64]:
    """Return the BM25 score (with Lucene's idf) of each text; the pool is its own corpus.

    A text that shares no word with the query scores 0, one that was not read before the deadline NaN.
    """
    if not texts:
        return np.zeros(0)
    # Among terms of equal frequency the last ones are kept: a chat turn puts its question at the end.
    query_counts = dict(Counter(reversed(terms(query))).most_common(_MAX_QUERY_TERMS))
    columns = {term: column for column, term in enumerate(query_counts)}
    counts = np.zeros((len(texts), len(columns)))
    lengths = np.zeros(len(texts))
    read = 0
    for row, text in enumerate(texts):
        if deadline is not None and deadline.expired:
            break
        text_terms = terms(text)
        lengths[row] = len(text_terms)
        for term in text_terms:
            if term in columns:
                counts[row, columns[term]] += 1
        read = row + 1
    scores = np.full(len(texts), np.nan)
    if read:
        scores[:read] = _scores(counts[:read], lengths[:read], np.array(list(query_counts.values())))
    return scores


def _scores(
    counts: NDArray[np.float64], lengths: NDArray[np.float64], query_counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the BM25 score of each text.

    :param counts: how often each text (row) has each term of the query (column).
    """
    frequency = (counts > 0).sum(axis=0)
    idf = np.log1p((len(counts) - frequency + 0.5) / (frequency + 0.5))
    relative_length = lengths / max(lengths.mean(), 1e-9)
    saturated = counts * (K1 + 1) / (counts + K1 * (1 - B + B * relative_length)[:, None])
    return np.asarray(saturated @ (idf * query_counts), dtype=np.float64)
