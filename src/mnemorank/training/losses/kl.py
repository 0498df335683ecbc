"""Distillation of a whole list: KL divergence between the teacher's softmax over it and ours."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from mnemorank._internal.old_config import positive
from mnemorank.training.losses.protocol import Loss, ScoredLists, TeacherOptions, losses, nothing


@dataclass(frozen=True, slots=True)
class KlOptions(TeacherOptions):
    """:param temperature: above 1, the teacher's finer distinctions count for more."""

    temperature: float = 1.0

    def __post_init__(self) -> None:
        positive(self, "temperature")


def _compute(batch: ScoredLists, options: KlOptions) -> Tensor:
    batch.check_unweighted("kl")
    lists, batch = len(batch.sizes), batch.taught(options)
    if not batch.sizes:
        return nothing(batch)
    heat = options.temperature
    terms = [
        F.kl_div((ours / heat).log_softmax(0), (theirs / heat).log_softmax(0), reduction="sum", log_target=True)
        for ours, theirs in zip(batch.per_list(batch.scores), batch.per_list(batch.teacher), strict=True)
    ]
    return torch.stack(terms).sum() / lists * heat**2


losses.add(Loss("kl", "KL divergence from the teacher's softmax over the list", KlOptions, _compute))
