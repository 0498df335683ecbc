"""Listwise softmax: each positive against all that is less relevant in its list.

A positive of weight w has a term w times as large; a negative of weight w stands in the list like w of its kind.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mnemorank.training.losses.protocol import Loss, NoOptions, ScoredLists, losses, nothing


def _compute(batch: ScoredLists, options: NoOptions) -> Tensor:
    terms = []
    flat = (batch.scores, batch.labels, batch.weights)
    for scores, labels, weights in zip(*(batch.per_list(values) for values in flat), strict=True):
        lower = (labels.unsqueeze(0) < labels.unsqueeze(1)) & (weights > 0).unsqueeze(0)
        counts = (labels > 0) & lower.any(dim=1)
        if not bool(counts.any()):
            continue
        against = (scores + weights.log()).unsqueeze(0).masked_fill(~lower, float("-inf"))[counts].logsumexp(dim=1)
        share = labels[counts] / labels[counts].sum()
        terms.append((F.softplus(against - scores[counts]) * share * weights[counts]).sum())
    return torch.stack(terms).mean() if terms else nothing(batch)


losses.add(
    Loss(
        "softmax",
        "−log softmax of each positive among the less relevant of its list, mean",
        NoOptions,
        _compute,
        takes_weights=True,
    )
)
