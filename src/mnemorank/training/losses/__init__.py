"""Losses, one a file. To add one: write the file, register the loss in it, and name the file here."""

from mnemorank.training.losses import bce, kl, lambda_rank, listnet, margin, margin_mse, softmax
from mnemorank.training.losses.protocol import Loss, ScoredLists, TeacherOptions, losses

__all__ = [
    "Loss",
    "ScoredLists",
    "TeacherOptions",
    "bce",
    "kl",
    "lambda_rank",
    "listnet",
    "losses",
    "margin",
    "margin_mse",
    "softmax",
]
