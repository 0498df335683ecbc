"""Margin ranking loss, the loss of the Hindsight reranker."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mnemorank.training.losses.protocol import LossOptions, ScoredLists, preference_pairs, register_loss, zero_loss


class MarginOptions(LossOptions):
    """Options of `margin`.

    :param margin: the difference in logits above which a pair counts as learned.
    """

    margin: float = 1.0


@register_loss("margin", MarginOptions, uses_weights=True, needs_contrast=True)
def margin(batch: ScoredLists, options: MarginOptions) -> Tensor:
    """max(0, margin − s⁺ + s⁻) over pairs of a list."""
    better, worse = preference_pairs(batch)
    if not len(better):
        return zero_loss(batch)
    high, low = batch.scores[better], batch.scores[worse]
    terms = F.margin_ranking_loss(high, low, torch.ones_like(high), margin=options.margin, reduction="none")
    return (terms * batch.weights[better] * batch.weights[worse]).mean()
