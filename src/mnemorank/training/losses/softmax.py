"""Listwise softmax.

A positive of weight w has a term w times as large; a negative of weight w counts like w copies of it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mnemorank.training.losses.protocol import LossOptions, ScoredLists, register_loss, zero_loss


@register_loss("softmax", uses_weights=True, needs_contrast=True)
def softmax(batch: ScoredLists, options: LossOptions) -> Tensor:
    """Mean −log softmax of each positive against all less relevant candidates of its list."""
    terms = []
    flat = (batch.scores, batch.labels, batch.weights)
    for scores, labels, weights in zip(*(batch.split(values) for values in flat), strict=True):
        is_lower = (labels.unsqueeze(0) < labels.unsqueeze(1)) & (weights > 0).unsqueeze(0)
        counts = (labels > 0) & is_lower.any(dim=1)
        if not bool(counts.any()):
            continue
        others = (scores + weights.log()).unsqueeze(0).masked_fill(~is_lower, float("-inf"))[counts].logsumexp(dim=1)
        share = labels[counts] / labels[counts].sum()
        terms.append((F.softplus(others - scores[counts]) * share * weights[counts]).sum())
    return torch.stack(terms).mean() if terms else zero_loss(batch)
