"""Binary cross-entropy on hard or graded labels (R1, R2), with a weight for positives (R4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from sentence_transformers.cross_encoder.losses import BinaryCrossEntropyLoss
from torch import Tensor

from mnemorank.training.losses.base import Loss, ScoredLists, losses
from mnemorank.training.losses.scored import Scored


@dataclass(frozen=True, slots=True)
class BceOptions:
    """:param pos_weight: how much more a positive counts than a negative."""

    pos_weight: float = 1.0


def _compute(batch: ScoredLists, options: BceOptions) -> Tensor:
    weight = torch.tensor(options.pos_weight, device=batch.scores.device)
    loss = BinaryCrossEntropyLoss(Scored(batch.scores), pos_weight=weight)
    everywhere = list(range(len(batch.scores)))
    result: Tensor = loss([everywhere, everywhere], batch.labels)
    return result


losses.add(
    Loss("bce", "binary cross-entropy on labels from 0 to 1, with pos_weight (R1, R2, R4)", BceOptions, _compute)
)
