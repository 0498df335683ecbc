"""What a loss is: a function from the scores of a batch of lists to one number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sentence_transformers import CrossEncoder
from torch import Tensor, nn

from mnemorank._internal.plugins import PluginTable
from mnemorank.errors import InputError


@dataclass(frozen=True, slots=True)
class ScoredLists:
    """A batch after the model's one forward pass.

    :param scores: one logit a candidate, list after list.
    :param labels: of the same shape, 0 to 1.
    :param sizes: how many candidates each list has.
    :param teacher: another model's logits, NaN where there are none.
    :param weights: how much each label counts. A loss is the mean of its terms times their weights, not a weighted
        mean: what an example counts does not depend on those it shares a batch with.
    """

    scores: Tensor
    labels: Tensor
    sizes: tuple[int, ...]
    teacher: Tensor
    weights: Tensor

    def positions(self) -> list[list[int]]:
        """Each list as positions in the flat tensors."""
        starts = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        return [list(range(start, start + size)) for start, size in zip(starts, self.sizes, strict=True)]

    def per_list(self, values: Tensor) -> list[Tensor]:
        """A flat tensor cut into the lists."""
        return list(torch.split(values, list(self.sizes)))

    def check_unweighted(self, name: str) -> None:
        """For losses that have no place for weights: to pass them over would be to train on something else."""
        if bool((self.weights != 1).any()):
            raise InputError(
                f"{name} takes no weights and the candidates have them; use bce, softmax or margin, "
                "or leave `weight` out of the data (feedback: mining.weighted = false)",
                field="loss",
            )

    def taught(self, options: TeacherOptions) -> ScoredLists:
        """The lists that have the teacher's logits: all of them must, unless the recipe says otherwise."""
        has = [not bool(scores.isnan().any()) for scores in self.per_list(self.teacher)]
        if all(has):
            return self
        if not options.partial:
            raise InputError(
                "distillation needs a `teacher_score` in every candidate's metadata; "
                "see mnemorank.data.distill for adding them, or set `options = { partial = true }`",
                field="loss",
            )
        kept = torch.tensor([i for own, fits in zip(self.positions(), has, strict=True) if fits for i in own])
        kept = kept.to(device=self.scores.device, dtype=torch.long)
        sizes = tuple(size for size, fits in zip(self.sizes, has, strict=True) if fits)
        parts = (self.scores, self.labels, self.teacher, self.weights)
        scores, labels, teacher, weights = (part[kept] for part in parts)
        return ScoredLists(scores, labels, sizes, teacher, weights)


@dataclass(frozen=True, slots=True)
class Loss:
    """:param options: the dataclass of what a recipe may set under `loss.options`.
    :param compute: takes the batch and an instance of `options`.
    :param takes_weights: whether it has a place for the weights of labels.
    """

    name: str
    description: str
    options: type
    compute: Callable[[ScoredLists, Any], Tensor]
    takes_weights: bool = False


losses: PluginTable[Loss] = PluginTable("loss")


@dataclass(frozen=True, slots=True)
class NoOptions:
    """For losses without options."""


@dataclass(frozen=True, slots=True)
class TeacherOptions:
    """For losses that read a teacher's logits.

    :param partial: pass over lists of which the teacher did not score every candidate, for another loss to learn from.
    """

    partial: bool = False


def preferences(batch: ScoredLists) -> tuple[Tensor, Tensor]:
    """Every pair of candidates of one list in which the first has the higher label, as positions."""
    better: list[int] = []
    worse: list[int] = []
    labels = batch.labels.tolist()
    for positions in batch.positions():
        for i in positions:
            for j in positions:
                if labels[i] > labels[j]:
                    better.append(i)
                    worse.append(j)
    device = batch.scores.device
    return torch.tensor(better, dtype=torch.long, device=device), torch.tensor(worse, dtype=torch.long, device=device)


def nothing(batch: ScoredLists) -> Tensor:
    """A loss of zero that is still part of the graph, for batches that have nothing to teach."""
    return batch.scores.sum() * 0.0


class Scored(CrossEncoder):
    """Answers a pair (list, position) with the score at that position."""

    def __init__(self, scores: Tensor) -> None:
        nn.Module.__init__(self)
        self._scores = scores

    @property
    def num_labels(self) -> int:
        return 1

    @property
    def device(self) -> torch.device:
        return self._scores.device

    def preprocess(self, inputs: Any, prompt: str | None = None, **_: Any) -> dict[str, Tensor]:
        return {"position": torch.tensor([position for _, position in inputs], device=self.device)}

    def forward(self, input: dict[str, Tensor], **_: Any) -> dict[str, Tensor]:
        return {"scores": self._scores[input["position"]].unsqueeze(1)}
