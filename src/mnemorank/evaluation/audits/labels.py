"""Label noise audit: positives that all models rank last are probably labeled wrong."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.arrays import Floats
from mnemorank.data.examples import Example
from mnemorank.evaluation.audits.protocol import (
    Audit,
    AuditInput,
    Finding,
    ScoreFunction,
    audits,
    pair_accuracy,
    relevance_mask,
    score_function,
    shorten,
    skip_without_labels,
    verdict_on,
)
from mnemorank.text.bm25 import bm25

WARN, FAIL = 0.03, 0.08
MIN_ACCURACY = 0.6


def run(data: AuditInput) -> Finding:
    """Measure the share of examples whose relevant candidates all judges rank below every other candidate.

    The judges are the given models and BM25, whose errors are of another kind. Judges close to chance on this data are
    ignored; at least two must remain.
    """
    if not data.models:
        return Finding("label-noise", "skipped", "BM25 alone cannot judge labels: add --model, better two")
    judges: dict[str, ScoreFunction] = {name: score_function(model) for name, model in data.models.items()}
    judges["bm25"] = lambda query, memories: bm25(query, [memory.text for memory in memories])
    examples = data.sample()
    if not examples:
        return skip_without_labels("label-noise")
    scores = {name: [judge(example.query, example.memories) for example in examples] for name, judge in judges.items()}
    accuracy = {
        name: float(np.mean([pair_accuracy(*pair) for pair in zip(examples, judge_scores, strict=True)]))
        for name, judge_scores in scores.items()
    }
    competent = [name for name, value in accuracy.items() if value >= MIN_ACCURACY]
    if len(competent) < 2:
        measured = ", ".join(f"{name} {value:.2f}" for name, value in accuracy.items())
        return Finding(
            "label-noise",
            "skipped",
            f"needs two judges with an accuracy of {MIN_ACCURACY}, got {measured}; add --model",
        )
    doubtful = [
        example
        for i, example in enumerate(examples)
        if all(_relevant_are_last(scores[name][i], relevance_mask(example)) for name in competent)
    ]
    share = len(doubtful) / len(examples)
    return Finding(
        "label-noise",
        verdict_on(share, WARN, FAIL),
        f"{len(doubtful)} of {len(examples)} examples have a positive that {' and '.join(competent)} rank last",
        share,
        [_describe(example) for example in doubtful[:3]],
        {"doubtful": [example.id for example in doubtful], "accuracy": accuracy},
    )


def _relevant_are_last(scores: Floats, is_relevant: NDArray[np.bool_]) -> bool:
    return bool(scores[is_relevant].max() < scores[~is_relevant].min())


def _describe(example: Example) -> str:
    is_relevant = relevance_mask(example).tolist()
    relevant, irrelevant = (example.memories[is_relevant.index(value)].text for value in (True, False))
    return (
        f"{shorten(example.query, 70)} | labeled relevant: {shorten(relevant, 60)} | "
        f"labeled irrelevant: {shorten(irrelevant, 60)}"
    )


audits.add(Audit("label-noise", "positives that every model ranks last", run))
