"""LambdaLoss: pairs of a list weighted by what swapping them would do to NDCG."""

from __future__ import annotations

from dataclasses import dataclass

from sentence_transformers.cross_encoder.losses import LambdaLoss
from sentence_transformers.cross_encoder.losses.lambda_loss import NDCGLoss2PPScheme
from torch import Tensor

from mnemorank._internal.old_config import at_least, positive
from mnemorank.training.losses.protocol import Loss, Scored, ScoredLists, losses


@dataclass(frozen=True, slots=True)
class LambdaOptions:
    """:param k: only pairs with one of the top k count; None for all."""

    k: int | None = None
    sigma: float = 1.0

    def __post_init__(self) -> None:
        at_least(self, "k", 1)
        positive(self, "sigma")


def _compute(batch: ScoredLists, options: LambdaOptions) -> Tensor:
    batch.check_unweighted("lambda")
    positions = batch.positions()
    loss = LambdaLoss(Scored(batch.scores), NDCGLoss2PPScheme(), k=options.k, sigma=options.sigma, mini_batch_size=-1)
    result: Tensor = loss([list(range(len(positions))), positions], batch.per_list(batch.labels))
    return result


losses.add(Loss("lambda", "LambdaLoss with the NDCG-Loss2++ weights", LambdaOptions, _compute))
