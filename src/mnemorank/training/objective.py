"""The objective: the recipe's losses, weighted, over the scores of one forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mnemorank._internal.old_config import read_table
from mnemorank.data.distill import teacher_score
from mnemorank.data.examples import Candidate
from mnemorank.errors import InputError
from mnemorank.training.losses import Loss, ScoredLists, TeacherOptions, losses
from mnemorank.training.network import Network
from mnemorank.training.recipe import LossTable
from mnemorank.training.sampling import DrawnList

_RANKING = ("margin", "softmax", "lambda", "listnet", "margin-mse")


def check_losses(tables: Sequence[LossTable], where: str = "loss") -> list[tuple[Loss, float, Any]]:
    """Look the losses up and read their options; errors name the key."""
    for i, table in enumerate(tables):
        if table.name in [other.name for other in tables[:i]]:
            raise InputError(f"{where}[{i}].name: {table.name} is named twice; name it once, with a weight")
    return [
        (
            losses[table.name],
            table.weight,
            read_table(losses[table.name].options, table.options, f"{where}[{i}].options"),
        )
        for i, table in enumerate(tables)
    ]


def check_candidates(candidates: Sequence[Candidate], tables: Sequence[LossTable]) -> None:
    """Stop where a loss lacks a teacher's score or has no place for a weight, as it would in its first batch."""
    scores = [teacher_score(candidate) for candidate in candidates]
    batch = ScoredLists(
        torch.zeros(len(candidates)),
        torch.tensor([candidate.label for candidate in candidates]),
        (len(candidates),),
        torch.tensor([math.nan if score is None else score for score in scores]),
        torch.tensor([candidate.weight for candidate in candidates]),
    )
    for loss, _, options in check_losses(tables):
        if not loss.takes_weights:
            batch.check_unweighted(loss.name)
        if isinstance(options, TeacherOptions):
            batch.taught(options)


def ranks_only(tables: Sequence[LossTable]) -> bool:
    """Whether all losses compare candidates, so that a list of equal labels has nothing to teach."""
    return all(table.name in _RANKING for table in tables)


class Objective(nn.Module):
    """Takes a batch of drawn lists, gives each loss times its weight, by name."""

    def __init__(self, model: Network, tables: Sequence[LossTable]) -> None:
        super().__init__()
        self.model = model
        self._losses = check_losses(tables)

    def forward(self, lists: Sequence[DrawnList]) -> dict[str, Tensor]:
        scores = self.model.scores([entry for drawn in lists for entry in drawn.inputs])
        batch = ScoredLists(
            scores,
            torch.tensor([label for drawn in lists for label in drawn.labels], device=scores.device),
            tuple(len(drawn.inputs) for drawn in lists),
            torch.tensor([score for drawn in lists for score in drawn.teacher], device=scores.device),
            torch.tensor([weight for drawn in lists for weight in drawn.weights], device=scores.device),
        )
        return {loss.name: weight * loss.compute(batch, options) for loss, weight, options in self._losses}
