"""How good a model in training is on the dev examples, through the pipeline's own reading and the bench's measures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mnemorank._internal.arrays import Floats
from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.calibration import fit_platt
from mnemorank.artifact.manifest import Calibration, Manifest
from mnemorank.data.examples import Example
from mnemorank.evaluation.metrics import Judgments, measure, neutral_order
from mnemorank.evaluation.significance import Comparison, Interval, compare, interval
from mnemorank.model.model import Model
from mnemorank.scorers.encoding import InputWriter
from mnemorank.scorers.protocol import Pair, BasePairScorer, Scores
from mnemorank.text.bm25 import bm25
from mnemorank.training.network import Network


class NetworkScorer(BasePairScorer):
    """The network in training as a scorer, so that dev examples are read as at inference."""

    def __init__(self, network: Network, writer: InputWriter, name: str) -> None:
        super().__init__(name, writer)
        self._network = network
        self._writer = writer

    def score_pairs(self, pairs: Sequence[Pair], *, deadline: Deadline | None = None) -> Scores:
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
    judged = [Judgments.of(example) for example in examples]
    return Measured(
        measure(judged, rankings),
        np.concatenate(scores),
        np.concatenate([one.relevant for one in judged]).astype(np.float64),
    )


SHOWN = ("map", "mrr@10", "ndcg@10", "recall@5", "hit@1")


@dataclass(frozen=True, slots=True)
class Results:
    """:param bm25: word overlap alone, for orientation: a base whose head is new ranks at random.
    :param leaked: how many of the questions share their group or nearly their words with a training question.
    """

    queries: int
    bm25: Mapping[str, Floats]
    base: Mapping[str, Floats]
    trained: Mapping[str, Floats]
    leaked: int = 0

    def row(self, name: str) -> tuple[Interval, Interval, Interval, Comparison]:
        """BM25, base and trained with intervals, and the paired difference trained − base."""
        return (
            interval(self.bm25[name]),
            interval(self.base[name]),
            interval(self.trained[name]),
            compare(self.trained[name], self.base[name]),
        )

    @property
    def caution(self) -> str | None:
        """What is to be said beside the figures where training has seen some of the questions."""
        if not self.leaked:
            return None
        return (
            f"{self.leaked} of the {self.queries} dev questions share their group or nearly their words with a "
            "training question, so the figures flatter the trained model."
        )

    def to_dict(self) -> dict[str, Any]:
        """For the manifest: every shown measure with its intervals."""
        found: dict[str, Any] = {"queries": self.queries}
        if self.leaked:
            found["leaked"] = self.leaked
        for name in SHOWN:
            lexical, base, trained, gain = self.row(name)
            found[name] = {
                "bm25": _numbers(lexical),
                "base": _numbers(base),
                "trained": _numbers(trained),
                "gain": _numbers(gain.difference),
                "p": round(gain.p, 4),
            }
        return found


def calibrate(measured: Measured) -> Calibration:
    """Platt's scaling on the dev scores, so that relevance is a probability; none where labels are all alike."""
    scored = ~np.isnan(measured.logits)
    logits, labels = measured.logits[scored], measured.labels[scored]
    if not len(labels) or labels.max() == labels.min() or np.ptp(logits) < 1e-9:
        return Calibration()
    fitted = fit_platt(logits, labels)
    return Calibration(round(fitted.scale, 6), round(fitted.bias, 6))


def format_interval(value: Interval) -> str:
    """`.853 [.821, .884]`"""
    if math.isnan(value.mean):
        return "–"
    return f"{_short(value.mean)} [{_short(value.low)}, {_short(value.high)}]"


def _short(number: float) -> str:
    return f"{number:.3f}".replace("0.", ".", 1) if abs(number) < 1 else f"{number:.3f}"


def _numbers(value: Interval) -> list[float | None]:
    return [None if math.isnan(number) else round(number, 4) for number in (value.mean, value.low, value.high)]
