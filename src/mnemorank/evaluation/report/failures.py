"""The questions where a contestant put something irrelevant first, for reading through."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mnemorank.evaluation.benchmark import Asked, Evaluation
from mnemorank.evaluation.cache import Outcome

MOST = 250


def failures(evaluation: Evaluation, most: int = MOST) -> list[dict[str, Any]]:
    """By contestant, the worst first: those whose first relevant memory stands lowest.

    :param most: how many of each contestant.
    """
    result = []
    for contestant, outcomes in enumerate(evaluation.outcomes.values()):
        missed = [
            _failure(contestant, asked, outcome)
            for asked, outcome in zip(evaluation.asked, outcomes, strict=True)
            if asked.judged.is_ranked and outcome.ranking and not asked.judged.relevant[outcome.ranking[0]]
        ]
        missed.sort(key=lambda entry: -(entry["rank"] or math.inf))
        result += missed[:most]
    return result


def _failure(contestant: int, asked: Asked, outcome: Outcome) -> dict[str, Any]:
    first = outcome.ranking[0]
    places = [place for place, position in enumerate(outcome.ranking) if asked.judged.relevant[position]]
    right = outcome.ranking[places[0]] if places else None
    return {
        "m": contestant,
        "id": asked.id,
        "q": asked.query,
        "k": asked.kind or "",
        "rank": places[0] + 1 if places else None,
        "of": len(outcome.ranking),
        "first": {"text": asked.texts.get(first, ""), "score": _score(outcome, first)},
        "right": None if right is None else {"text": _text(asked, right), "score": _score(outcome, right)},
    }


def _text(asked: Asked, position: int) -> str:
    """Excerpts of the first few relevant candidates are kept; a question with very many shows one of these."""
    return asked.texts.get(position) or next(
        (text for other, text in asked.texts.items() if asked.judged.relevant[other]), ""
    )


def _score(outcome: Outcome, position: int) -> float | None:
    values = outcome.answer.scores if outcome.answer.relevance is None else outcome.answer.relevance
    value = float(values[position])
    return round(value, 4) if np.isfinite(value) else None
