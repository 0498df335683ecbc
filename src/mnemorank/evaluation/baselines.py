"""Baselines: systems that need no model."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mnemorank._internal.arrays import Floats, sigmoid
from mnemorank._internal.plugins import PluginTable
from mnemorank.data.retrieval import StemmedBM25, bm25s_version
from mnemorank.evaluation.cache import code_digest
from mnemorank.evaluation.protocol import Prediction, Question
from mnemorank.options import Options
from mnemorank.ranking.factors import factors
from mnemorank.ranking.first_stage import memories_bm25, standardize


@dataclass(frozen=True, slots=True)
class Baseline:
    """A system that is a plain function.

    :param version: the versions of the libraries that it uses.
    """

    name: str
    description: str
    score: Callable[[Question], Floats]
    version: str = ""

    @property
    def fingerprint(self) -> str:
        return f"{self.name}-{self.version}-{code_digest()}"

    def rank(self, question: Question) -> Prediction:
        return Prediction(np.asarray(self.score(question), dtype=np.float64))


baselines: PluginTable[Baseline] = PluginTable("baseline")


def score_bm25(question: Question) -> Floats:
    """Score by BM25; the memories of the question are the corpus."""
    return StemmedBM25([memory.text for memory in question.memories]).scores(question.query)


def score_random(question: Question) -> Floats:
    """Score at random, the same on every run."""
    seed = zlib.crc32(question.key.encode(errors="surrogatepass"))
    return np.random.default_rng(seed).random(len(question.memories))


def score_first_stage(question: Question) -> Floats:
    """Return the memories' first-stage scores, or the pipeline's BM25 if there are none.

    The order of the file is not a first stage: most files list the relevant candidates first.
    """
    scores = [memory.first_stage_score for memory in question.memories]
    if any(score is not None for score in scores):
        return np.array([-np.inf if score is None else score for score in scores])
    return memories_bm25(question.query, question.memories)


def score_recency(question: Question) -> Floats:
    """Score by date; undated memories come last."""
    return np.array([memory.date.middle if memory.date else -np.inf for memory in question.memories])


def score_fusion(question: Question) -> Floats:
    """Score by the Hindsight reranker's formula, with the standardized first-stage score as the logit."""
    relevance = sigmoid(standardize(score_first_stage(question)))
    multipliers = factors(question.memories, Options(recency="linear"), question.now, None)
    return np.asarray(relevance * np.prod(list(multipliers.values()), axis=0), dtype=np.float64)


for _baseline in (
    Baseline("bm25", "BM25 (bm25s, Snowball stemmer, Lucene's idf)", score_bm25, bm25s_version()),
    Baseline("random", "random order", score_random),
    Baseline("first-stage", "the memories' first-stage scores, or else the pipeline's BM25", score_first_stage),
    Baseline("recency", "newest first", score_recency),
    Baseline("fusion", "the Hindsight reranker's formula without a model: first stage, recency, proof", score_fusion),
):
    baselines.add(_baseline)
