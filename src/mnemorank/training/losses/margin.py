"""Margin ranking loss, R0's: the right memory is to score `margin` higher than the wrong one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mnemorank.training.losses.protocol import Loss, ScoredLists, losses, nothing, preferences


@dataclass(frozen=True, slots=True)
class MarginOptions:
    margin: float = 1.0


def _compute(batch: ScoredLists, options: MarginOptions) -> Tensor:
    better, worse = preferences(batch)
    if not len(better):
        return nothing(batch)
    high, low = batch.scores[better], batch.scores[worse]
    missed = F.margin_ranking_loss(high, low, torch.ones_like(high), margin=options.margin, reduction="none")
    return (missed * batch.weights[better] * batch.weights[worse]).mean()


losses.add(
    Loss("margin", "max(0, margin − s⁺ + s⁻) over pairs of a list (R0)", MarginOptions, _compute, takes_weights=True)
)
