"""Distillation: store the scores of a teacher reranker with each candidate, for the MarginMSE and KL losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from mnemorank._internal.arrays import logit
from mnemorank.data.examples import Candidate, Example
from mnemorank.model.model import Scoring, score_with_truncation

TEACHER_SCORE = "teacher_score"


def distill(examples: Iterable[Example], teacher: Scoring) -> Iterator[Example]:
    """Yield the examples with the teacher's logit in the metadata of each candidate. Labels do not change.

    `write_lists` keeps the scores, so that the teacher runs only once.

    :param teacher: any model, such as `Model.load(...)`. Probabilities are converted to log-odds.
    """
    is_probability = teacher.manifest.score_kind == "probability"
    for example in examples:
        raw = score_with_truncation(teacher, example.query, example.memories)[0].raw
        scores = logit(raw) if is_probability else np.asarray(raw, dtype=np.float64)
        candidates = zip(example.candidates, scores, strict=True)
        yield replace(example, candidates=tuple(_scored(candidate, float(score)) for candidate, score in candidates))


def teacher_score(candidate: Candidate) -> float | None:
    """Return the score that `distill` stored, or None."""
    value = candidate.memory.metadata.get(TEACHER_SCORE)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _scored(candidate: Candidate, score: float) -> Candidate:
    memory = candidate.memory
    kept = {key: value for key, value in memory.metadata.items() if key != TEACHER_SCORE}
    # A memory without text has no score: NaN.
    added = {} if math.isnan(score) else {TEACHER_SCORE: score}
    return replace(candidate, memory=replace(memory, metadata={**kept, **added}))
