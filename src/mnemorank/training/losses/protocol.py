"""What a loss is: a function from the scores of a batch of lists to one number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from sentence_transformers import CrossEncoder
from torch import Tensor, nn

from mnemorank._internal.config import ConfigModel
from mnemorank._internal.plugins import PluginTable
from mnemorank.errors import InputError


class LossOptions(ConfigModel):
    """What a recipe may set under `loss.options`; losses subclass it to add keys."""


class TeacherOptions(LossOptions):
    """Options of losses that read the logits of a teacher.

    :param partial: skip lists with candidates that the teacher did not score, so that another loss learns from them.
    """

    partial: bool = False


@dataclass(frozen=True, slots=True)
class ScoredLists:
    """A batch after the forward pass. All tensors are flat: the candidates of one list after those of another.

    :param scores: one logit per candidate.
    :param labels: from 0 to 1.
    :param sizes: the number of candidates of each list.
    :param teacher_scores: logits of another model; NaN where there are none.
    :param weights: how much each label counts. A loss is the mean of its terms times their weights, not a weighted
        mean, so that what an example counts does not depend on the rest of its batch.
    """

    scores: Tensor
    labels: Tensor
    sizes: tuple[int, ...]
    teacher_scores: Tensor
    weights: Tensor

    def positions(self) -> list[list[int]]:
        """Return the positions of each list in the flat tensors."""
        starts = [sum(self.sizes[:i]) for i in range(len(self.sizes))]
        return [list(range(start, start + size)) for start, size in zip(starts, self.sizes, strict=True)]

    def split(self, values: Tensor) -> list[Tensor]:
        """Split a flat tensor into the lists."""
        return list(torch.split(values, list(self.sizes)))

    def check_unweighted(self, name: str) -> None:
        """Raise if any label has a weight other than 1, which the named loss would ignore."""
        if bool((self.weights != 1).any()):
            others = ", ".join(other for other in losses if losses[other].uses_weights)
            raise InputError(
                f"{name} does not support label weights; use one of {others}, or remove `weight` from the data "
                "(feedback: mining.weighted = false)",
                field="loss",
            )

    def with_teacher(self, options: TeacherOptions) -> ScoredLists:
        """Return the lists that have teacher scores; unless `partial` is set, all of them must."""
        has_scores = [not bool(scores.isnan().any()) for scores in self.split(self.teacher_scores)]
        if all(has_scores):
            return self
        if not options.partial:
            raise InputError(
                "distillation needs a `teacher_score` in the metadata of every candidate; add them with "
                "mnemorank.data.distill, or set `options = { partial = true }`",
                field="loss",
            )
        pairs = zip(self.positions(), has_scores, strict=True)
        kept = torch.tensor([i for positions, is_scored in pairs if is_scored for i in positions])
        kept = kept.to(device=self.scores.device, dtype=torch.long)
        sizes = tuple(size for size, is_scored in zip(self.sizes, has_scores, strict=True) if is_scored)
        tensors = (self.scores, self.labels, self.teacher_scores, self.weights)
        scores, labels, teacher_scores, weights = (tensor[kept] for tensor in tensors)
        return ScoredLists(scores, labels, sizes, teacher_scores, weights)


Function = TypeVar("Function", bound=Callable[[ScoredLists, Any], Tensor])


@dataclass(frozen=True, slots=True)
class Loss:
    """A registered loss; see `register_loss`."""

    name: str
    description: str
    options: type[LossOptions]
    function: Callable[[ScoredLists, Any], Tensor]
    uses_weights: bool
    needs_contrast: bool

    def compute(self, batch: ScoredLists, options: LossOptions) -> Tensor:
        if not self.uses_weights:
            batch.check_unweighted(self.name)
        return self.function(batch, options)


losses: PluginTable[Loss] = PluginTable("loss")


def register_loss(
    name: str, options: type[LossOptions] = LossOptions, *, uses_weights: bool = False, needs_contrast: bool = False
) -> Callable[[Function], Function]:
    """Register a function as a loss. Its docstring is the description.

    :param name: the name in recipes.
    :param options: the model of what a recipe may set under `loss.options`; the function gets an instance.
    :param uses_weights: the loss uses the weights of labels; otherwise weights other than 1 are an error.
    :param needs_contrast: the loss compares candidates, so that it learns nothing from a list of equal labels.
    """

    def register(function: Function) -> Function:
        description = (function.__doc__ or "").strip().splitlines()[0]
        losses.add(Loss(name, description, options, function, uses_weights, needs_contrast))
        return function

    return register


def preference_pairs(batch: ScoredLists) -> tuple[Tensor, Tensor]:
    """Return the positions of all pairs of a list with different labels, the one with the higher label first."""
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


def zero_loss(batch: ScoredLists) -> Tensor:
    """Return a loss of 0 that is part of the graph, for batches without a training signal."""
    return batch.scores.sum() * 0.0


class ScoreLookup(CrossEncoder):
    """Returns known scores, so that losses of sentence-transformers run without a second forward pass.

    Its input is pairs of (list, position).
    """

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
