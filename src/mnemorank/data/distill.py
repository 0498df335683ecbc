"""Scores of a teacher reranker beside each candidate, for the MarginMSE and KL losses."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from mnemorank._internal.arrays import logit
from mnemorank.data.examples import Candidate, Example
from mnemorank.model.model import Scoring, score_by_the_end

TEACHER_SCORE = "teacher_score"


def distill(examples: Iterable[Example], teacher: Scoring) -> Iterator[Example]:
    """The examples with the teacher's logit in each candidate's metadata; labels stay as they are.

    `write_lists` keeps the scores, so that a teacher runs once for many trainings.

    :param teacher: any model, such as `Model.load(...)`; a probability is turned into its log-odds.
    """
    is_probability = teacher.manifest.score_kind == "probability"
    for example in examples:
        raw = score_by_the_end(teacher, example.query, example.memories)[0].raw
        scores = logit(raw) if is_probability else np.asarray(raw, dtype=np.float64)
        candidates = zip(example.candidates, scores, strict=True)
        yield replace(example, candidates=tuple(_scored(candidate, float(score)) for candidate, score in candidates))


def teacher_score(candidate: Candidate) -> float | None:
    """The score that `distill` left; None where there is none."""
    value = candidate.memory.metadata.get(TEACHER_SCORE)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _scored(candidate: Candidate, score: float) -> Candidate:
    """An empty text has no score; it gets none, rather than one that looks like the others."""
    memory = candidate.memory
    kept = {key: value for key, value in memory.metadata.items() if key != TEACHER_SCORE}
    added = {} if math.isnan(score) else {TEACHER_SCORE: score}
    return replace(candidate, memory=replace(memory, metadata={**kept, **added}))
