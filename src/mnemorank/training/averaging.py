"""A running average of the weights, which generalizes better than the last step's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mnemorank.training.checkpoints import put_weights, trainable


class RunningAverage:
    """:param decay: of the average; the first steps count less long, so that the start is soon forgotten."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model = model
        self._decay = decay
        self.weights = {name: weight.clone() for name, weight in trainable(model).items()}

    def update(self, step: int) -> None:
        keep = min(self._decay, (1 + step) / (20 + step))
        current = trainable(self._model)
        torch._foreach_lerp_(list(self.weights.values()), [current[name] for name in self.weights], 1 - keep)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model with the averaged weights, for the length of the block."""
        own = {name: weight.clone() for name, weight in trainable(self._model).items()}
        put_weights(self._model, self.weights)
        try:
            yield
        finally:
            put_weights(self._model, own)


def mix(trained: Mapping[str, Tensor], base: Mapping[str, Tensor], share: float) -> dict[str, Tensor]:
    """The trained weights with a share of the base's in them; weights that the base did not have stay."""
    return {name: torch.lerp(weight, base[name], share) if name in base else weight for name, weight in trained.items()}
