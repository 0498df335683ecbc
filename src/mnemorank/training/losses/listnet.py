"""ListNet: cross-entropy between the softmax of the labels and that of the scores."""

from __future__ import annotations

from sentence_transformers.cross_encoder.losses import ListNetLoss
from torch import Tensor

from mnemorank.training.losses.protocol import Loss, NoOptions, Scored, ScoredLists, losses


def _compute(batch: ScoredLists, options: NoOptions) -> Tensor:
    batch.check_unweighted("listnet")
    positions = batch.positions()
    loss = ListNetLoss(Scored(batch.scores), mini_batch_size=-1)
    result: Tensor = loss([list(range(len(positions))), positions], batch.per_list(batch.labels))
    return result


losses.add(Loss("listnet", "cross-entropy of two softmaxes, labels and scores", NoOptions, _compute))
