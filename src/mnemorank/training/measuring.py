"""How good a model in training is on the dev examples, through the pipeline's own reading and the bench's measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from mnemorank.data.records import Example
from mnemorank.evaluation.measures import Judged, measure, neutral_order
from mnemorank.manifest import Manifest
from mnemorank.model import Model
from mnemorank.ranking.lexical import bm25
from mnemorank.scorers.base import Pair, Scores
from mnemorank.scorers.forwarding import PairwiseBase
from mnemorank.scorers.inputs import InputWriter
from mnemorank.training.network import Network

Floats = NDArray[np.float64]


class NetworkScorer(PairwiseBase):
    """The network in training as a scorer, so that dev examples are read as at inference."""

    def __init__(self, network: Network, writer: InputWriter, name: str) -> None:
        super().__init__(name, writer)
        self._network = network
        self._writer = writer

    def score_pairs(self, pairs: Sequence[Pair], *, deadline: float | None = None) -> Scores:
        if not pairs:
            return np.zeros(0)
        self._network.eval()
        with torch.no_grad():
            scores = self._network.scores(self._writer.write(pairs))
        return np.asarray(scores.double().cpu().numpy())

    def close(self) -> None:
        """Nothing to give back: the network belongs to the trainer."""


@dataclass(frozen=True, slots=True)
class Measured:
    """:param values: each measure of each question, NaN where nothing is relevant.
    :param logits: of all candidates, question after question; NaN for empty texts.
    :param labels: of the same: 1 for what counts as relevant in binary measures, else 0. Relevance is calibrated to
        these: a graded pair's .2 says "on topic, no answer", not "in one of five cases right".
    """

    values: Mapping[str, Floats]
    logits: Floats
    labels: Floats

    def mean(self, name: str) -> float:
        return float(np.nanmean(self.values[name]))


def model_in_training(network: Network, writer: InputWriter, manifest: Manifest) -> Model:
    return Model(manifest, NetworkScorer(network, writer, manifest.name))


def measure_model(model: Model, examples: Sequence[Example]) -> Measured:
    return _measured(examples, [model.score(example.query, example.memories).raw for example in examples])


def measure_bm25(examples: Sequence[Example]) -> Measured:
    """What word overlap alone gives on the same questions, for orientation."""
    return _measured(examples, [bm25(e.query, [memory.text for memory in e.memories]) for e in examples])


def _measured(examples: Sequence[Example], scores: Sequence[Floats]) -> Measured:
    rankings = [
        sorted(neutral_order(example), key=lambda i, own=own: -np.nan_to_num(own[i], nan=-np.inf))  # type: ignore[misc]
        for example, own in zip(examples, scores, strict=True)
    ]
    judged = [Judged.of(example) for example in examples]
    return Measured(
        measure(judged, rankings),
        np.concatenate(scores),
        np.concatenate([one.relevant for one in judged]).astype(np.float64),
    )
