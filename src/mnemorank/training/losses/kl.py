"""Listwise distillation."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor

from mnemorank.training.losses.protocol import ScoredLists, TeacherOptions, register_loss, zero_loss


class KlOptions(TeacherOptions):
    """Options of `kl`.

    :param temperature: above 1, the finer distinctions of the teacher count for more.
    """

    temperature: float = Field(default=1.0, gt=0)


@register_loss("kl", KlOptions)
def kl(batch: ScoredLists, options: KlOptions) -> Tensor:
    """KL divergence between the softmax of the teacher over a list and that of the student."""
    count, batch = len(batch.sizes), batch.with_teacher(options)
    if not batch.sizes:
        return zero_loss(batch)
    temperature = options.temperature
    terms = [
        F.kl_div(
            (student / temperature).log_softmax(0),
            (teacher / temperature).log_softmax(0),
            reduction="sum",
            log_target=True,
        )
        for student, teacher in zip(batch.split(batch.scores), batch.split(batch.teacher_scores), strict=True)
    ]
    return torch.stack(terms).sum() / count * temperature**2
