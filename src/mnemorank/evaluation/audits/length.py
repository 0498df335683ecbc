"""Length audit: whether the data or the model favors long texts."""

from __future__ import annotations

import numpy as np

from mnemorank._internal.arrays import Floats, spearman
from mnemorank.data.examples import Example
from mnemorank.evaluation.audits.protocol import (
    Audit,
    AuditInput,
    Finding,
    audits,
    has_both_labels,
    pair_accuracy,
    relevance_mask,
    score_function,
    shorten,
    skip_without_labels,
    verdict_on,
)
from mnemorank.model.model import Model

WARN, FAIL = 0.2, 0.4
DATA_WARN, DATA_FAIL = 0.10, 0.20
_MIN_IRRELEVANT = 4


def run(data: AuditInput) -> Finding:
    """Measure the rank correlation of score and length among irrelevant candidates.

    Without a model, measure the share of pairs in which the relevant text is the longer one, minus ½.
    """
    examples = [example for example in data.examples if has_both_labels(example)]
    if not examples:
        return skip_without_labels("length")
    share = float(np.mean([pair_accuracy(example, _lengths(example)) for example in examples]))
    summary = f"the relevant text is the longer one in {share:.0%} of the pairs"
    details = {"relevant_is_longer": share}
    if data.model is None:
        verdict = verdict_on(abs(share - 0.5), DATA_WARN, DATA_FAIL)
        return Finding("length", verdict, summary, share - 0.5, details=details)
    correlation, cases = _model_bias(data, data.model)
    return Finding(
        "length",
        verdict_on(abs(correlation), WARN, FAIL),
        f"among irrelevant memories, score and length correlate {correlation:+.2f}; in the data {summary}",
        correlation,
        cases,
        {**details, "correlation": correlation},
    )


def _model_bias(data: AuditInput, model: Model) -> tuple[float, list[str]]:
    """Return the correlation, and queries where the longest irrelevant memory ranks first.

    It is the mean over pools with enough irrelevant candidates. Triplets have none: there it is taken over all
    examples at once.
    """
    score = score_function(model)
    by_pool: list[float] = []
    all_scores: list[float] = []
    all_lengths: list[float] = []
    cases: list[tuple[float, str]] = []
    for example in data.sample():
        scores = score(example.query, example.memories)
        irrelevant = np.flatnonzero(~relevance_mask(example) & np.isfinite(scores))
        lengths = _lengths(example)[irrelevant]
        if len(irrelevant) >= _MIN_IRRELEVANT and len(set(lengths)) > 1:
            by_pool.append(spearman(scores[irrelevant], lengths))
        all_scores += scores[irrelevant].tolist()
        all_lengths += lengths.tolist()
        best = int(np.argmax(scores))
        longest = float(lengths.max(initial=0.0))
        text = example.memories[best].text
        if best in irrelevant.tolist() and len(text.split()) == longest:
            cases.append((longest, f"{shorten(example.query, 60)} → ({longest:.0f} words) {shorten(text, 60)}"))
    correlation = float(np.mean(by_pool)) if by_pool else spearman(np.array(all_scores), np.array(all_lengths))
    return correlation, [text for _, text in sorted(cases, reverse=True)[:3]]


def _lengths(example: Example) -> Floats:
    return np.array([float(len(memory.text.split())) for memory in example.memories])


audits.add(Audit("length", "whether long texts are favored", run))
