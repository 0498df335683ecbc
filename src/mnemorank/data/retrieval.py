"""Retrieval over a corpus of any size: BM25 through bm25s, and bi-encoders through sentence-transformers.

The pipeline's own first stage is `mnemorank.text.bm25`, which needs no extra.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.errors import ArtifactError, InputError, MissingExtraError
from mnemorank.text.words import terms

K1, B = 1.2, 0.75

SearchIndex = Callable[[Sequence[str]], Floats]
"""Scores its texts for queries: a matrix with a row per query."""

Retriever = Callable[[Sequence[str]], SearchIndex]
"""Indexes texts, once for all queries."""


class StemmedBM25:
    """BM25 as published baselines use it: English stop words removed, Snowball stemmer, Lucene's idf."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._size = len(texts)
        bm25s, stemmer = _bm25s(), _stemmer()
        tokens = bm25s.tokenize(list(texts), stopwords="en_plus", stemmer=stemmer, show_progress=False)
        self._index: Any = None
        if tokens.vocab and any(tokens.ids):
            self._index = bm25s.BM25(k1=K1, b=B, method="lucene")
            self._index.index(tokens, show_progress=False)

    def scores(self, query: str) -> Floats:
        """Return the score of every text, 0 for texts without a word of the query."""
        words = _bm25s().tokenize(
            [query], stopwords="en_plus", stemmer=_stemmer(), show_progress=False, return_ids=False
        )[0]
        if self._index is None or not words:
            return np.zeros(self._size)
        return np.asarray(self._index.get_scores(words), dtype=np.float64)

    def search(self, query: str, top_k: int) -> list[tuple[int, float]]:
        """Return the positions and scores of the best texts that share a word with the query."""
        scores = self.scores(query)
        best = np.argsort(-scores, kind="stable")[:top_k]
        return [(int(i), float(scores[i])) for i in best if scores[i] > 0]


def bm25s_version() -> str:
    """Return the versions of the libraries behind `StemmedBM25`; empty if they are not installed."""
    try:
        return f"bm25s {version('bm25s')}, PyStemmer {version('PyStemmer')}"
    except PackageNotFoundError:
        return ""


def load_retriever(name: str) -> Retriever:
    """Return the retriever `bm25`, or that of a bi-encoder folder."""
    if name == "bm25":
        return bm25_index
    if Path(name).is_dir():
        return partial(bi_encoder_index, name)
    raise InputError(f"expected bm25 or the folder of a bi-encoder, got {name!r}", field="retriever")


def bm25_index(texts: Sequence[str]) -> SearchIndex:
    """Index texts for BM25, with the terms of the pipeline's first stage."""
    index = _bm25s().BM25(k1=K1, b=B)
    index.index([terms(text) or [""] for text in texts], show_progress=False)

    def search(queries: Sequence[str]) -> Floats:
        scores = np.zeros((len(queries), len(texts)))
        for row, query in enumerate(queries):
            known = [term for term in terms(query) if term in index.vocab_dict]
            if known:
                scores[row] = index.get_scores(known)
        return scores

    return search


def load_bi_encoder(folder: Path) -> Any:
    """Return the SentenceTransformer of a folder, on the CPU and without network access."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise MissingExtraError(f"bi-encoders need `pip install 'mnemorank[train]'` ({error})") from error
    if not folder.is_dir():
        raise ArtifactError(f"{folder}: is not a folder with a bi-encoder")
    try:
        return SentenceTransformer(
            str(folder),
            device="cpu",
            local_files_only=True,
            model_kwargs={"use_safetensors": True},  # pickled weights can run code
        )
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"{folder}: cannot be loaded as a bi-encoder: {error}") from error


def bi_encoder_index(folder: str, texts: Sequence[str]) -> SearchIndex:
    """Index texts for the cosine of their embeddings.

    :param folder: a model in the layout of sentence-transformers.
    """
    encoder = load_bi_encoder(Path(folder))

    def embed(texts: Sequence[str]) -> Floats:
        vectors = encoder.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(vectors, dtype=np.float64)

    text_vectors = embed(texts)
    return lambda queries: np.asarray(embed(queries) @ text_vectors.T)


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise MissingExtraError(f"BM25 over a corpus needs `pip install 'mnemorank[eval]'` ({error})") from error
    return bm25s


@cache
def _stemmer() -> Any:
    try:
        import Stemmer
    except ImportError as error:
        raise MissingExtraError(f"stemming needs `pip install 'mnemorank[eval]'` ({error})") from error
    return Stemmer.Stemmer("english")
