"""Listwise softmax: each positive against all that is less relevant in its list."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mnemorank.training.losses.base import Loss, NoOptions, ScoredLists, losses, nothing


def _compute(batch: ScoredLists, options: NoOptions) -> Tensor:
    terms = []
    for scores, labels in zip(batch.per_list(batch.scores), batch.per_list(batch.labels), strict=True):
        lower = labels.unsqueeze(0) < labels.unsqueeze(1)
        counts = (labels > 0) & lower.any(dim=1)
        if not bool(counts.any()):
            continue
        against = scores.unsqueeze(0).masked_fill(~lower, float("-inf"))[counts].logsumexp(dim=1)
        share = labels[counts] / labels[counts].sum()
        terms.append((F.softplus(against - scores[counts]) * share).sum())
    return torch.stack(terms).mean() if terms else nothing(batch)


losses.add(
    Loss("softmax", "−log softmax of each positive among the less relevant of its list, mean", NoOptions, _compute)
)
