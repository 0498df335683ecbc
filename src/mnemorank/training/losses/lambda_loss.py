"""LambdaLoss (Wang et al., 2018), as implemented in sentence-transformers."""

from __future__ import annotations

from pydantic import Field
from sentence_transformers.cross_encoder.losses import LambdaLoss
from sentence_transformers.cross_encoder.losses.lambda_loss import NDCGLoss2PPScheme
from torch import Tensor

from mnemorank.training.losses.protocol import LossOptions, ScoredLists, ScoreLookup, register_loss


class LambdaOptions(LossOptions):
    """Options of `lambda_loss`.

    :param k: count only pairs with one candidate in the top k; None for all pairs.
    """

    k: int | None = Field(default=None, ge=1)
    sigma: float = Field(default=1.0, gt=0)


@register_loss("lambda", LambdaOptions, needs_contrast=True)
def lambda_loss(batch: ScoredLists, options: LambdaOptions) -> Tensor:
    """Pairwise loss weighted by the change in NDCG from swapping the pair (NDCG-Loss2++)."""
    positions = batch.positions()
    scores = ScoreLookup(batch.scores)
    loss = LambdaLoss(scores, NDCGLoss2PPScheme(), k=options.k, sigma=options.sigma, mini_batch_size=-1)
    result: Tensor = loss([list(range(len(positions))), positions], batch.split(batch.labels))
    return result
