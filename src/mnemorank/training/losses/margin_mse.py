"""MarginMSE: learn how far apart a teacher puts a relevant and an irrelevant candidate."""

from __future__ import annotations

from sentence_transformers.cross_encoder.losses import MarginMSELoss
from torch import Tensor

from mnemorank.training.losses.protocol import Loss, Scored, ScoredLists, TeacherOptions, losses, nothing, preferences


def _compute(batch: ScoredLists, options: TeacherOptions) -> Tensor:
    batch.check_unweighted("margin-mse")
    lists, batch = len(batch.sizes), batch.taught(options)
    better, worse = preferences(batch)
    if not len(better):
        return nothing(batch)
    loss = MarginMSELoss(Scored(batch.scores))
    pairs = [better.tolist(), better.tolist(), worse.tolist()]
    result: Tensor = loss(pairs, batch.teacher[better] - batch.teacher[worse])
    # By the share of lists that are taught: a list must not count for more because those beside it are not.
    return result * (len(batch.sizes) / lists)


losses.add(
    Loss(
        "margin-mse",
        "squared difference of margins between student and teacher",
        TeacherOptions,
        _compute,
    )
)
