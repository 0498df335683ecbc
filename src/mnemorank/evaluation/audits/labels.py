"""Audit 5: label noise. A positive that every judge ranks last is perhaps none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.arrays import Floats
from mnemorank.data.examples import Example
from mnemorank.evaluation.audits.protocol import (
    Audit,
    Finding,
    Material,
    Scorer,
    audits,
    judged,
    relevant,
    right_over_wrong,
    scorer_of,
    shown,
)
from mnemorank.text.bm25 import bm25

WARN, FAIL = 0.03, 0.08
COMPETENT = 0.6


def run(material: Material) -> Finding:
    """The number is the share of examples whose relevant candidates all judges put below every other candidate.

    The judges are the given models and BM25, which errs in ways of its own; those near chance on this data are left
    out, and two must remain.
    """
    if not material.models:
        return Finding("label-noise", "skipped", "BM25 alone is no judge of labels: add --model, better two")
    judges: dict[str, Scorer] = {name: scorer_of(model) for name, model in material.models.items()}
    judges["bm25"] = lambda query, memories: bm25(query, [memory.text for memory in memories])
    examples = material.sample()
    if not examples:
        return Finding("label-noise", "skipped", "no example has both right and wrong candidates")
    scores = {name: [judge(one.query, one.memories) for one in examples] for name, judge in judges.items()}
    right = {
        name: float(np.mean([right_over_wrong(*pair) for pair in zip(examples, own, strict=True)]))
        for name, own in scores.items()
    }
    competent = [name for name, value in right.items() if value >= COMPETENT]
    told = ", ".join(f"{name} {value:.2f}" for name, value in right.items())
    if len(competent) < 2:
        return Finding("label-noise", "skipped", f"needs two judges above {COMPETENT} here, has {told}; add a --model")
    doubtful = [
        example
        for i, example in enumerate(examples)
        if all(_is_last(scores[name][i], relevant(example)) for name in competent)
    ]
    number = len(doubtful) / len(examples)
    return Finding(
        "label-noise",
        judged(number, WARN, FAIL),
        f"{len(doubtful)} of {len(examples)} examples have a right answer that {' and '.join(competent)} rank last",
        number,
        [_case(example) for example in doubtful[:3]],
        {"doubtful": [example.id for example in doubtful], "accuracy": right},
    )


def _is_last(scores: Floats, is_right: NDArray[np.bool_]) -> bool:
    return bool(scores[is_right].max() < scores[~is_right].min())


def _case(example: Example) -> str:
    is_right = relevant(example).tolist()
    right, wrong = (example.memories[is_right.index(value)].text for value in (True, False))
    return f"{shown(example.query, 70)} | said right: {shown(right, 60)} | said wrong: {shown(wrong, 60)}"


audits.add(Audit("label-noise", "positives that every model ranks last", run))
