"""The losses of sentence-transformers over scores that are already there.

They take texts and run the model themselves, one forward pass a loss. Given positions in the place of texts and this
stand-in in the place of the model, they compute on the scores of one pass that all losses of a recipe share.
"""

from __future__ import annotations

from typing import Any

import torch
from sentence_transformers import CrossEncoder
from torch import Tensor, nn


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
