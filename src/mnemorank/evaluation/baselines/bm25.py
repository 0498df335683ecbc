"""BM25 of the bm25s library with Snowball's English stemmer: an implementation that is not our own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from mnemorank.errors import MissingExtraError
from mnemorank.evaluation.baselines.base import Baseline, Floats, Question, baselines

K1, B = 1.2, 0.75


@cache
def _library() -> tuple[Any, Any]:
    try:
        import bm25s
        import Stemmer
    except ImportError as error:
        raise MissingExtraError(f"bm25: needs `pip install 'mnemorank[eval]'` ({error})") from error
    return bm25s, Stemmer.Stemmer("english")


def score_bm25(question: Question) -> Floats:
    """The question's own memories are the corpus."""
    bm25s, stemmer = _library()
    index = _index([memory.text for memory in question.memories])
    asked = bm25s.tokenize(
        [question.query], stopwords="en_plus", stemmer=stemmer, show_progress=False, return_ids=False
    )[0]
    if index is None or not asked:
        return np.zeros(len(question.memories))
    return np.asarray(index.get_scores(asked), dtype=np.float64)


def search(texts: Sequence[str], queries: Sequence[str], most: int) -> list[list[tuple[int, float]]]:
    """The best texts for each query, as positions with their scores."""
    bm25s, stemmer = _library()
    index = _index(texts)
    if index is None:
        return [[] for _ in queries]
    asked = bm25s.tokenize(list(queries), stopwords="en_plus", stemmer=stemmer, show_progress=False, return_ids=False)
    result = []
    for words in asked:
        scores = index.get_scores(words) if words else np.zeros(len(texts))
        best = np.argsort(-scores, kind="stable")[:most]
        result.append([(int(i), float(scores[i])) for i in best if scores[i] > 0])
    return result


def _index(texts: Sequence[str]) -> Any:
    bm25s, stemmer = _library()
    tokens = bm25s.tokenize(list(texts), stopwords="en_plus", stemmer=stemmer, show_progress=False)
    if not tokens.vocab or not any(tokens.ids):
        return None
    index = bm25s.BM25(k1=K1, b=B, method="lucene")
    index.index(tokens, show_progress=False)
    return index


def _version() -> str:
    """Of the libraries, where they are installed."""
    try:
        return f"bm25s {version('bm25s')}, PyStemmer {version('PyStemmer')}"
    except PackageNotFoundError:
        return ""


baselines.add(Baseline("bm25", "BM25 (bm25s, Snowball stemmer, Lucene's idf)", score_bm25, _version()))
