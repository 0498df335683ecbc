"""BM25 over a pool, and word overlap of two texts: numpy and the standard library only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mnemorank.text.words import terms

K1, B = 1.2, 0.75
# A query is a question, not a book: this bounds memory on large pools.
_MOST_TERMS = 256


def bm25(query: str, texts: Sequence[str]) -> NDArray[np.float64]:
    """BM25 (Lucene's idf) of each text for the query; the pool is its own corpus. Zero where no word is shared."""
    if not texts:
        return np.zeros(0)
    # Of terms that occur as often the last: a turn of a chat asks at its end.
    asked = dict(Counter(reversed(terms(query))).most_common(_MOST_TERMS))
    counts = np.zeros((len(texts), len(asked)))
    lengths = np.zeros(len(texts))
    column = {term: index for index, term in enumerate(asked)}
    for row, text in enumerate(texts):
        found = terms(text)
        lengths[row] = len(found)
        for term in found:
            if term in column:
                counts[row, column[term]] += 1
    with_term = (counts > 0).sum(axis=0)
    idf = np.log1p((len(texts) - with_term + 0.5) / (with_term + 0.5))
    relative = lengths / max(lengths.mean(), 1e-9)
    saturated = counts * (K1 + 1) / (counts + K1 * (1 - B + B * relative)[:, None])
    return np.asarray(saturated @ (idf * np.array(list(asked.values()))), dtype=np.float64)


def word_cosine(first: Counter[str], second: Counter[str]) -> float:
    """Cosine of two bags of terms, 0 to 1."""
    if len(first) > len(second):
        first, second = second, first
    dot = sum(count * second[term] for term, count in first.items() if term in second)
    norms = sum(c * c for c in first.values()) * sum(c * c for c in second.values())
    return float(dot / norms**0.5) if dot else 0.0


def jaccard(first: Sequence[str], second: Sequence[str]) -> float:
    """Share of names in common, without regard to case; 0 where either has none."""
    a, b = {name.lower() for name in first}, {name.lower() for name in second}
    return len(a & b) / len(a | b) if a and b else 0.0
