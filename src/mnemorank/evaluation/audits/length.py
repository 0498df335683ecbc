"""Audit 3: are long texts favoured, by the data or by the model?"""

from __future__ import annotations

import numpy as np

from mnemorank._internal.arrays import Floats, mean_ranks
from mnemorank.evaluation.audits.protocol import (
    Audit,
    Finding,
    Material,
    audits,
    has_both,
    judged,
    relevant,
    right_over_wrong,
    scorer_of,
    shown,
)
from mnemorank.model.model import Model

WARN, FAIL = 0.2, 0.4
DATA_WARN, DATA_FAIL = 0.10, 0.20


def run(material: Material) -> Finding:
    """With a model, the number is the rank correlation of score and length among irrelevant candidates; without one,
    the share of pairs in which the relevant text is the longer, less ½.
    """
    usable = [one for one in material.examples if has_both(one)]
    if not usable:
        return Finding("length", "skipped", "no example has both right and wrong candidates")
    lengths = [np.array([float(len(memory.text.split())) for memory in one.memories]) for one in usable]
    longer = float(np.mean([right_over_wrong(one, own) for one, own in zip(usable, lengths, strict=True)]))
    data = f"the relevant text is the longer one in {longer:.0%} of the pairs"
    details = {"relevant_is_longer": longer}
    if material.model is None:
        return Finding("length", judged(abs(longer - 0.5), DATA_WARN, DATA_FAIL), data, longer - 0.5, details=details)
    correlation, examples = _model_bias(material, material.model)
    return Finding(
        "length",
        judged(abs(correlation), WARN, FAIL),
        f"among irrelevant memories, score and length correlate {correlation:+.2f}; in the data {data}",
        correlation,
        examples,
        {**details, "correlation": correlation},
    )


def _model_bias(material: Material, model: Model) -> tuple[float, list[str]]:
    """Within each pool of at least four irrelevant candidates; of triplets, over all of them, as ranks of the whole."""
    score = scorer_of(model)
    within: list[float] = []
    scores: list[float] = []
    lengths: list[float] = []
    longest: list[tuple[float, str]] = []
    for example in material.sample():
        found = score(example.query, example.memories)
        wrong = np.flatnonzero(~relevant(example) & np.isfinite(found))
        own = np.array([float(len(example.memories[i].text.split())) for i in wrong])
        if len(wrong) >= 4 and len(set(own)) > 1:
            within.append(spearman(found[wrong], own))
        scores += found[wrong].tolist()
        lengths += own.tolist()
        best = int(np.argmax(found))
        longest_own = float(own.max(initial=0.0))
        text = example.memories[best].text
        if best in wrong.tolist() and len(text.split()) == longest_own:
            longest.append((longest_own, f"{shown(example.query, 60)} → ({longest_own:.0f} words) {shown(text, 60)}"))
    correlation = float(np.mean(within)) if within else spearman(np.array(scores), np.array(lengths))
    return correlation, [text for _, text in sorted(longest, reverse=True)[:3]]


def spearman(first: Floats, second: Floats) -> float:
    """Rank correlation; 0 where one of them is constant."""
    a, b = mean_ranks(first), mean_ranks(second)
    if len(a) < 2 or a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


audits.add(Audit("length", "whether long texts are favoured", run))
