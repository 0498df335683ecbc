"""Binary cross-entropy, the loss of LycheeMem, agro and multi-hop-rag-reranker."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor

from mnemorank.training.losses.protocol import LossOptions, ScoredLists, register_loss


class BceOptions(LossOptions):
    """Options of `bce`.

    :param pos_weight: how much more a positive counts than a negative.
    """

    pos_weight: float = Field(default=1.0, ge=0)


@register_loss("bce", BceOptions, uses_weights=True)
def bce(batch: ScoredLists, options: BceOptions) -> Tensor:
    """Binary cross-entropy on labels from 0 to 1."""
    pos_weight = torch.tensor(options.pos_weight, device=batch.scores.device)
    return F.binary_cross_entropy_with_logits(batch.scores, batch.labels, batch.weights, pos_weight=pos_weight)
