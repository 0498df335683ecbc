"""Baselines, by name. To add one: write a file, register its Baseline, import it here."""

from mnemorank.evaluation.baselines import bm25, chance, first_stage, fusion, recency
from mnemorank.evaluation.baselines.base import Answer, Baseline, Contestant, Question, baselines

__all__ = [
    "Answer",
    "Baseline",
    "Contestant",
    "Question",
    "baselines",
    "bm25",
    "chance",
    "first_stage",
    "fusion",
    "recency",
]
