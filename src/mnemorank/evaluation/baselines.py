"""What is measured: anything that orders the candidates of a question."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np

from mnemorank._internal.arrays import Floats, sigmoid
from mnemorank._internal.plugins import PluginTable
from mnemorank.errors import MissingExtraError
from mnemorank.evaluation.files import digest_of_code
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.options import Options
from mnemorank.ranking.factors import factors
from mnemorank.ranking.first_stage import memories_bm25, standardize


@dataclass(frozen=True, slots=True)
class Question:
    """What a contestant sees of an example: no labels, and the memories in an order that says nothing.

    :param key: unique in the task, for seeded choices.
    """

    key: str
    query: str
    memories: Sequence[Memory]
    time: Moment | None = None

    @property
    def now(self) -> Moment:
        """Its own time; without one, the pool's newest date, so that the result does not change with the day."""
        dates = [memory.date for memory in self.memories if memory.date]
        return self.time or max(dates, key=lambda date: date.start, default=Moment(2000))


@dataclass(frozen=True, slots=True)
class Answer:
    """How a contestant ranks the memories of a question.

    :param scores: one a memory, higher is better; equal scores are ties.
    :param order: positions best first, where it is not simply that of the scores (the pipeline's stages reorder).
    :param relevance: probability that each memory is relevant, where the contestant gives one; NaN if not scored.
    :param abstained: the contestant says that nothing is relevant; None if it never says so.
    """

    scores: Floats
    order: Sequence[int] | None = None
    relevance: Floats | None = None
    abstained: bool | None = None

    def ranking(self) -> list[int]:
        """Positions best first. Ties keep the order of the question, which is drawn by hash: see `neutral_order`."""
        if self.order is not None:
            return list(self.order)
        return [int(i) for i in np.argsort(-self.scores, kind="stable")]


class Contestant(Protocol):
    """A model or baseline in a benchmark.

    :param fingerprint: names exactly what computes the scores, for the cache.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def answer(self, question: Question) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Baseline:
    """A contestant that is a plain function.

    :param version: of what it uses beside this package's code: another library.
    """

    name: str
    description: str
    score: Callable[[Question], Floats]
    version: str = ""

    @property
    def fingerprint(self) -> str:
        return f"{self.name}-{self.version}-{digest_of_code()}"

    def answer(self, question: Question) -> Answer:
        return Answer(np.asarray(self.score(question), dtype=np.float64))


baselines: PluginTable[Baseline] = PluginTable("baseline")


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


def score_random(question: Question) -> Floats:
    seed = zlib.crc32(question.key.encode(errors="surrogatepass"))
    return np.random.default_rng(seed).random(len(question.memories))


baselines.add(Baseline("random", "random order", score_random))


def score_first_stage(question: Question) -> Floats:
    """The order in which a file lists its candidates is no first stage: most files list the relevant ones first."""
    given = [memory.first_stage_score for memory in question.memories]
    if any(value is not None for value in given):
        return np.array([-np.inf if value is None else value for value in given])
    return memories_bm25(question.query, question.memories)


baselines.add(Baseline("first-stage", "the given first-stage scores, else the pipeline's BM25", score_first_stage))


def score_recency(question: Question) -> Floats:
    """Undated memories come last."""
    return np.array([memory.date.middle if memory.date else -np.inf for memory in question.memories])


baselines.add(Baseline("recency", "newest first", score_recency))


def score_hindsight(question: Question) -> Floats:
    """The first stage's standardized score stands for the model's logit."""
    relevance = sigmoid(standardize(score_first_stage(question)))
    parts = factors(question.memories, Options(recency="linear"), question.now, None)
    return np.asarray(relevance * np.prod(list(parts.values()), axis=0), dtype=np.float64)


baselines.add(
    Baseline(
        "fusion",
        "the Hindsight reranker's formula without a model: first stage, recency, proof",
        score_hindsight,
    )
)
