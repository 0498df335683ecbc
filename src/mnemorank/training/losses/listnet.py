"""ListNet (Cao et al., 2007), as implemented in sentence-transformers."""

from __future__ import annotations

from sentence_transformers.cross_encoder.losses import ListNetLoss
from torch import Tensor

from mnemorank.training.losses.protocol import LossOptions, ScoredLists, ScoreLookup, register_loss


@register_loss("listnet", needs_contrast=True)
def listnet(batch: ScoredLists, options: LossOptions) -> Tensor:
    """Cross-entropy between the softmax of the labels and that of the scores."""
    positions = batch.positions()
    loss = ListNetLoss(ScoreLookup(batch.scores), mini_batch_size=-1)
    result: Tensor = loss([list(range(len(positions))), positions], batch.split(batch.labels))
    return result
