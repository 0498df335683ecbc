"""Binary cross-entropy on hard or graded labels (R1, R2), with a weight for positives (R4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mnemorank._internal.old_config import at_least
from mnemorank.training.losses.protocol import Loss, ScoredLists, losses


@dataclass(frozen=True, slots=True)
class BceOptions:
    """:param pos_weight: how much more a positive counts than a negative."""

    pos_weight: float = 1.0

    def __post_init__(self) -> None:
        at_least(self, "pos_weight", 0)


def _compute(batch: ScoredLists, options: BceOptions) -> Tensor:
    positive = torch.tensor(options.pos_weight, device=batch.scores.device)
    return F.binary_cross_entropy_with_logits(batch.scores, batch.labels, batch.weights, pos_weight=positive)


losses.add(
    Loss(
        "bce",
        "binary cross-entropy on labels from 0 to 1, with pos_weight (R1, R2, R4)",
        BceOptions,
        _compute,
        takes_weights=True,
    )
)
