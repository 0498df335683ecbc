"""Audit 1: how far do dates, type and length get with the text removed? Position and feature tokens, apart."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

from mnemorank._internal.arrays import Floats, sigmoid
from mnemorank.data.examples import Example
from mnemorank.evaluation.audits.metadata_features import columns, common_types, names
from mnemorank.evaluation.audits.protocol import (
    Audit,
    Finding,
    Material,
    audits,
    has_both,
    judged,
    relevant,
    right_over_wrong,
    shown,
)
from mnemorank.evaluation.significance import interval

FOLDS = 5
WARN, FAIL = 0.60, 0.70
METADATA = ("dates", "type", "length")
MOST_PAIRS = 40


def run(material: Material) -> Finding:
    """The number is the accuracy of a cross-validated learner, on pairs of a right and a wrong candidate: .5 is chance.

    Folds never share a query, a group or (of triplets) a memory, so that nothing can be learned by heart.
    """
    examples = [one for one in material.examples if has_both(one)]
    folds = fold_of_examples(examples, FOLDS, by_memory=material.in_pairs)
    if len(set(folds)) < 2:
        return Finding("metadata-only", "skipped", "needs examples of at least two groups, each with right and wrong")
    types = common_types(examples)
    tables = [columns(example, types) for example in examples]
    parts = ("dates", "type", "length", *(() if material.in_pairs else ("position",)), "feature tokens")
    by_part = {part: float(np.mean(_cross_validated(examples, [t[part] for t in tables], folds))) for part in parts}
    together = [np.hstack([table[part] for part in METADATA]) for table in tables]
    values = _cross_validated(examples, together, folds)
    spread = interval(values)
    rules = _rules(examples, tables, names(types), parts)
    best_rule, best_value = max(rules.items(), key=lambda rule: rule[1])
    listed_first = by_part.get("position", 0.5) > FAIL
    return Finding(
        "metadata-only",
        judged(spread.mean, WARN, FAIL),
        f"without the text, {spread.mean:.0%} of the pairs are told apart ({spread.low:.0%}–{spread.high:.0%}; "
        f"chance is 50%); best single rule: {best_rule!r} {best_value:.0%}"
        + (
            "; relevant candidates stand first in the file: never read its order as a first stage"
            if listed_first
            else ""
        ),
        spread.mean,
        _giveaways(examples, values),
        {"by_part": by_part, "interval": [spread.low, spread.high], "rules": rules},
    )


def _cross_validated(examples: Sequence[Example], tables: Sequence[Floats], folds: Sequence[int]) -> Floats:
    """Of each example, the share of its pairs in the right order, by weights learned on the other folds."""
    result = np.full(len(examples), 0.5)
    assigned = np.array(folds)
    for fold in sorted(set(folds)):
        train = np.flatnonzero(assigned != fold).tolist()
        weights = _learn(np.concatenate([_differences(examples[i], tables[i]) for i in train]))
        for i in np.flatnonzero(assigned == fold).tolist():
            result[i] = right_over_wrong(examples[i], np.round(tables[i] @ weights, 9))
    return result


def _differences(example: Example, table: Floats) -> Floats:
    """Right minus wrong; of a large pool, some pairs spread over it."""
    is_right = relevant(example)
    right, wrong = table[is_right], table[~is_right]
    pairs = (right[:, None, :] - wrong[None, :, :]).reshape(len(right) * len(wrong), table.shape[1])
    chosen: Floats = pairs[np.linspace(0, len(pairs) - 1, min(len(pairs), MOST_PAIRS)).astype(int)]
    return chosen


def _learn(differences: Floats, penalty: float = 1.0, steps: int = 25) -> Floats:
    """Pairwise logistic regression (no intercept) by Newton's method."""
    weights = np.zeros(differences.shape[1])
    for _ in range(steps):
        wrong = sigmoid(-(differences @ weights))
        gradient = differences.T @ wrong - penalty * weights
        curvature = (differences.T * (wrong * (1 - wrong))) @ differences + penalty * np.eye(len(weights))
        step = np.linalg.solve(curvature, gradient)
        weights = weights + step
        if np.abs(step).max(initial=0.0) < 1e-8:
            break
    return weights


def _rules(
    examples: Sequence[Example],
    tables: Sequence[dict[str, Floats]],
    named: dict[str, tuple[str, ...]],
    parts: Sequence[str],
) -> dict[str, float]:
    """Accuracy of each feature as the only rule, in its better direction."""
    rules = {}
    for part in parts:
        for column, name in enumerate(named[part]):
            pairs = zip(examples, tables, strict=True)
            value = float(np.mean([right_over_wrong(one, table[part][:, column]) for one, table in pairs]))
            if value >= 0.5:
                rules[f"{name} wins"] = value
            else:
                rules[f"{name} loses"] = 1 - value
    return rules


def _giveaways(examples: Sequence[Example], values: Floats, most: int = 3) -> list[str]:
    """Questions that metadata alone answers."""
    told = [example.query for example, value in zip(examples, values, strict=True) if value == 1]
    return [f"answered without the text: {shown(query)}" for query in told[:most]]


audits.add(Audit("metadata-only", "dates, type, length, position, feature tokens without the text", run))


def fold_of_examples(examples: Sequence[Example], folds: int, *, by_memory: bool = False) -> list[int]:
    """The fold of each example; examples of one group, and those that share a query, are in the same fold.

    :param by_memory: also keep those together that share a memory (mirrored triplets); lists over a common pool would
        then all be one group.
    """
    parents: dict[str, str] = {}

    def root(key: str) -> str:
        while parents.setdefault(key, key) != key:
            key = parents[key]
        return key

    for example in examples:
        own = f"query {example.query}"
        keys = [f"group {example.group}"] if example.group else []
        keys += [f"memory {memory.text}" for memory in example.memories] if by_memory else []
        for key in keys:
            parents[root(key)] = root(own)
    roots = [root(f"query {example.query}") for example in examples]
    return [zlib.crc32(own.encode(errors="surrogatepass")) % folds for own in roots]
