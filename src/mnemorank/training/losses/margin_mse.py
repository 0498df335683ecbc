"""MarginMSE: learn how far apart a teacher puts a relevant and an irrelevant candidate."""

from __future__ import annotations

from sentence_transformers.cross_encoder.losses import MarginMSELoss
from torch import Tensor

from mnemorank.training.losses.base import Loss, NoOptions, ScoredLists, losses, nothing, preferences
from mnemorank.training.losses.scored import Scored


def _compute(batch: ScoredLists, options: NoOptions) -> Tensor:
    batch.check_unweighted("margin-mse")
    teacher = batch.taught()
    better, worse = preferences(batch)
    if not len(better):
        return nothing(batch)
    loss = MarginMSELoss(Scored(batch.scores))
    pairs = [better.tolist(), better.tolist(), worse.tolist()]
    result: Tensor = loss(pairs, teacher[better] - teacher[worse])
    return result


losses.add(
    Loss(
        "margin-mse",
        "squared difference of margins between student and teacher",
        NoOptions,
        _compute,
        needs_teacher=True,
    )
)
