"""The questions for which a system ranked an irrelevant memory first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnemorank.evaluation.benchmark import BenchmarkRun, JudgedQuestion
from mnemorank.evaluation.protocol import Prediction

MAX_FAILURES = 250


def failures(run: BenchmarkRun, limit: int = MAX_FAILURES) -> list[dict[str, Any]]:
    """Return the failures by system, those with the lowest rank of the first relevant memory first.

    :param limit: the number of failures per system.
    """
    result = []
    for system, predictions in enumerate(run.predictions.values()):
        failed = [
            _failure(system, question, prediction)
            for question, prediction in zip(run.questions, predictions, strict=True)
            if question.judgments.has_relevant
            and prediction.ranking
            and not question.judgments.relevant[prediction.ranking[0]]
        ]
        failed.sort(key=lambda entry: -(entry["rank"] or math.inf))
        result += failed[:limit]
    return result


def _failure(system: int, question: JudgedQuestion, prediction: Prediction) -> dict[str, Any]:
    ranking = prediction.ranking
    ranks = [rank for rank, position in enumerate(ranking, 1) if question.judgments.relevant[position]]
    relevant = ranking[ranks[0] - 1] if ranks else None
    return {
        "system": system,
        "id": question.id,
        "query": question.query,
        "kind": question.kind or "",
        "rank": ranks[0] if ranks else None,
        "candidates": len(ranking),
        "first": {"text": question.excerpts.get(ranking[0], ""), "score": _score(prediction, ranking[0])},
        "relevant": None
        if relevant is None
        else {"text": _relevant_text(question, relevant), "score": _score(prediction, relevant)},
    }


def _relevant_text(question: JudgedQuestion, position: int) -> str:
    """Return the excerpt of a relevant memory; only those of the first few are kept, so it may be that of another."""
    return question.excerpts.get(position) or next(
        (text for other, text in question.excerpts.items() if question.judgments.relevant[other]), ""
    )


def _score(prediction: Prediction, position: int) -> float | None:
    values = prediction.scores if prediction.relevance is None else prediction.relevance
    value = float(values[position])
    return round(value, 4) if np.isfinite(value) else None
