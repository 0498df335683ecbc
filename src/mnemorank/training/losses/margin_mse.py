"""MarginMSE (Hofstätter et al., 2020), as implemented in sentence-transformers."""

from __future__ import annotations

from sentence_transformers.cross_encoder.losses import MarginMSELoss
from torch import Tensor

from mnemorank.training.losses.protocol import (
    ScoredLists,
    ScoreLookup,
    TeacherOptions,
    preference_pairs,
    register_loss,
    zero_loss,
)


@register_loss("margin-mse", TeacherOptions, needs_contrast=True)
def margin_mse(batch: ScoredLists, options: TeacherOptions) -> Tensor:
    """Squared difference between the margins of student and teacher."""
    count, batch = len(batch.sizes), batch.with_teacher(options)
    better, worse = preference_pairs(batch)
    if not len(better):
        return zero_loss(batch)
    loss = MarginMSELoss(ScoreLookup(batch.scores))
    triplets = [better.tolist(), better.tolist(), worse.tolist()]
    result: Tensor = loss(triplets, batch.teacher_scores[better] - batch.teacher_scores[worse])
    # Scaled by the share of lists with a teacher, so that a list does not count more when others lack one.
    return result * (len(batch.sizes) / count)
