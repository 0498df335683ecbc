"""The objective: the weighted sum of a stage's losses over the scores of one forward pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mnemorank._internal.config import validate_config
from mnemorank.data.distill import teacher_score
from mnemorank.data.examples import Candidate
from mnemorank.errors import InputError
from mnemorank.training.losses import Loss, LossOptions, ScoredLists, TeacherOptions, losses
from mnemorank.training.network import Network
from mnemorank.training.recipe import LossSettings
from mnemorank.training.sampling import SampledList


@dataclass(frozen=True, slots=True)
class WeightedLoss:
    """A loss of a recipe with its weight and validated options."""

    loss: Loss
    weight: float
    options: LossOptions


def resolve_losses(settings: Sequence[LossSettings], file: str = "recipe") -> list[WeightedLoss]:
    """Look up the losses and validate their options.

    :param file: the recipe's file name, for errors.
    """
    resolved: list[WeightedLoss] = []
    for i, entry in enumerate(settings):
        field = f"loss.{i}.name"
        if entry.name not in losses:
            message = f"expected one of {', '.join(losses)}, got {entry.name!r}"
            raise InputError(message, field=field, code="unknown", location=file)
        if any(entry.name == other.name for other in settings[:i]):
            message = f"{entry.name} is named twice; name it once, with a weight"
            raise InputError(message, field=field, location=file)
        options = validate_config(losses[entry.name].options, entry.options, file, f"loss.{i}.options")
        resolved.append(WeightedLoss(losses[entry.name], entry.weight, options))
    return resolved


def check_candidates(candidates: Sequence[Candidate], settings: Sequence[LossSettings]) -> None:
    """Raise if a loss lacks teacher scores or does not support label weights, as it would in its first batch."""
    scores = [teacher_score(candidate) for candidate in candidates]
    batch = ScoredLists(
        torch.zeros(len(candidates)),
        torch.tensor([candidate.label for candidate in candidates]),
        (len(candidates),),
        torch.tensor([math.nan if score is None else score for score in scores]),
        torch.tensor([candidate.weight for candidate in candidates]),
    )
    for entry in resolve_losses(settings):
        if not entry.loss.uses_weights:
            batch.check_unweighted(entry.loss.name)
        if isinstance(entry.options, TeacherOptions):
            batch.with_teacher(entry.options)


def needs_contrast(settings: Sequence[LossSettings]) -> bool:
    """Return whether all losses compare candidates, so that a list of equal labels gives no training signal."""
    return all(losses[entry.name].needs_contrast for entry in settings)


class Objective(nn.Module):
    """Maps a batch of lists to each loss times its weight, by name."""

    def __init__(self, model: Network, settings: Sequence[LossSettings]) -> None:
        super().__init__()
        self.model = model
        self._losses = resolve_losses(settings)

    def forward(self, lists: Sequence[SampledList]) -> dict[str, Tensor]:
        scores = self.model.scores([entry for sampled in lists for entry in sampled.inputs])
        batch = ScoredLists(
            scores,
            torch.tensor([label for sampled in lists for label in sampled.labels], device=scores.device),
            tuple(len(sampled.inputs) for sampled in lists),
            torch.tensor([score for sampled in lists for score in sampled.teacher_scores], device=scores.device),
            torch.tensor([weight for sampled in lists for weight in sampled.weights], device=scores.device),
        )
        return {e.loss.name: e.weight * e.loss.compute(batch, e.options) for e in self._losses}
