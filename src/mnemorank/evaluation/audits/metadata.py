"""Metadata audit: how well candidates can be ranked by dates, type and length alone, without reading the text."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from mnemorank._internal.arrays import Floats, sigmoid
from mnemorank.data.examples import Example
from mnemorank.evaluation.audits.metadata_features import common_types, feature_names, feature_table
from mnemorank.evaluation.audits.protocol import (
    Audit,
    AuditInput,
    Finding,
    audits,
    has_both_labels,
    pair_accuracy,
    relevance_mask,
    shorten,
    verdict_on,
)
from mnemorank.evaluation.significance import interval

FOLDS = 5
WARN, FAIL = 0.60, 0.70
METADATA = ("dates", "type", "length")
MAX_PAIRS = 40


def run(data: AuditInput) -> Finding:
    """Measure the cross-validated pair accuracy of a linear model on metadata; 0.5 is chance.

    Folds never share a query, a group or (for triplets) a memory, so that nothing can be memorized.
    """
    examples = [example for example in data.examples if has_both_labels(example)]
    folds = assign_folds(examples, FOLDS, by_memory=data.is_triplets)
    if len(set(folds)) < 2:
        return Finding(
            "metadata-only", "skipped", "needs examples of two groups with relevant and irrelevant candidates"
        )
    types = common_types(examples)
    tables = [feature_table(example, types) for example in examples]
    parts = ("dates", "type", "length", *(() if data.is_triplets else ("position",)), "feature tokens")
    by_part = {part: float(np.mean(_cross_validate(examples, [t[part] for t in tables], folds))) for part in parts}
    combined = [np.hstack([table[part] for part in METADATA]) for table in tables]
    accuracy = _cross_validate(examples, combined, folds)
    spread = interval(accuracy)
    rules = _single_feature_rules(examples, tables, feature_names(types), parts)
    best_rule, best_value = max(rules.items(), key=lambda rule: rule[1])
    summary = (
        f"without the text, {spread.mean:.0%} of the pairs are ordered correctly ({spread.low:.0%}–{spread.high:.0%}; "
        f"chance is 50%); best single rule: {best_rule!r} {best_value:.0%}"
    )
    if by_part.get("position", 0.5) > FAIL:
        summary += "; relevant candidates come first in the file: do not use its order as a first stage"
    return Finding(
        "metadata-only",
        verdict_on(spread.mean, WARN, FAIL),
        summary,
        spread.mean,
        _giveaways(examples, accuracy),
        {"by_part": by_part, "interval": [spread.low, spread.high], "rules": rules},
    )


def _cross_validate(examples: Sequence[Example], tables: Sequence[Floats], folds: Sequence[int]) -> Floats:
    """Return the pair accuracy of each example, with weights fitted on the other folds."""
    result = np.full(len(examples), 0.5)
    fold_of = np.array(folds)
    for fold in sorted(set(folds)):
        train = np.flatnonzero(fold_of != fold).tolist()
        weights = _fit(np.concatenate([_differences(examples[i], tables[i]) for i in train]))
        for i in np.flatnonzero(fold_of == fold).tolist():
            result[i] = pair_accuracy(examples[i], np.round(tables[i] @ weights, 9))
    return result


def _differences(example: Example, table: Floats) -> Floats:
    """Return relevant minus irrelevant features; for a large pool, of pairs spread evenly over it."""
    is_relevant = relevance_mask(example)
    relevant, irrelevant = table[is_relevant], table[~is_relevant]
    pairs = (relevant[:, None, :] - irrelevant[None, :, :]).reshape(len(relevant) * len(irrelevant), table.shape[1])
    chosen: Floats = pairs[np.linspace(0, len(pairs) - 1, min(len(pairs), MAX_PAIRS)).astype(int)]
    return chosen


def _fit(differences: Floats, penalty: float = 1.0, steps: int = 25) -> Floats:
    """Fit a pairwise logistic regression without intercept by Newton's method."""
    weights = np.zeros(differences.shape[1])
    for _ in range(steps):
        error = sigmoid(-(differences @ weights))
        gradient = differences.T @ error - penalty * weights
        curvature = (differences.T * (error * (1 - error))) @ differences + penalty * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if np.abs(step).max(initial=0.0) < 1e-8:
            break
    return weights


def _single_feature_rules(
    examples: Sequence[Example],
    tables: Sequence[dict[str, Floats]],
    names: dict[str, tuple[str, ...]],
    parts: Sequence[str],
) -> dict[str, float]:
    """Return the accuracy of each feature as the only rule, in its better direction."""
    rules = {}
    for part in parts:
        for column, name in enumerate(names[part]):
            pairs = zip(examples, tables, strict=True)
            value = float(np.mean([pair_accuracy(example, table[part][:, column]) for example, table in pairs]))
            if value >= 0.5:
                rules[f"{name} wins"] = value
            else:
                rules[f"{name} loses"] = 1 - value
    return rules


def _giveaways(examples: Sequence[Example], accuracy: Floats, limit: int = 3) -> list[str]:
    """Return queries that metadata alone answers."""
    queries = [example.query for example, value in zip(examples, accuracy, strict=True) if value == 1]
    return [f"answered without the text: {shorten(query)}" for query in queries[:limit]]


def assign_folds(examples: Sequence[Example], folds: int, *, by_memory: bool = False) -> list[int]:
    """Return the fold of each example; examples that share a group or a query are in the same fold.

    :param by_memory: also keep examples together that share a memory, such as triplets and their mirror images. Lists
        over a common pool would all end up in one fold.
    """
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            key = parents[key]
        return key

    for example in examples:
        keys = [f"group {example.group}"] if example.group else []
        keys += [f"memory {memory.text}" for memory in example.memories] if by_memory else []
        for key in keys:
            parents[root(key)] = root(f"query {example.query}")
    roots = [root(f"query {example.query}") for example in examples]
    return [zlib.crc32(key.encode(errors="surrogatepass")) % folds for key in roots]


audits.add(Audit("metadata-only", "dates, type, length, position and feature tokens without the text", run))
