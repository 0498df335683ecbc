"""Evaluation of a model in training on the dev data, through the same encoding and metrics as the benchmarks."""

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
from mnemorank.scorers.protocol import BasePairScorer, Pair, Scores
from mnemorank.text.bm25 import bm25
from mnemorank.training.network import Network

REPORTED_METRICS = ("map", "mrr@10", "ndcg@10", "recall@5", "hit@1")


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
        """Do nothing: the network belongs to the trainer."""


@dataclass(frozen=True, slots=True)
class DevEvaluation:
    """The scores and metrics of a model on the dev data.

    :param values: each metric of each query; NaN where nothing is relevant.
    :param logits: of all candidates, query after query; NaN for empty texts.
    :param relevant: for each logit, 1 if the candidate counts as relevant in binary metrics, else 0. Calibration is
        fitted to these: a graded label of .2 means "on topic, no answer", not "relevant in one of five cases".
    """

    values: Mapping[str, Floats]
    logits: Floats
    relevant: Floats

    def mean(self, metric: str) -> float:
        return float(np.nanmean(self.values[metric]))


def wrap_network(network: Network, writer: InputWriter, manifest: Manifest) -> Model:
    """Return the network in training as a model."""
    return Model(manifest, NetworkScorer(network, writer, manifest.name))


def evaluate_model(model: Model, examples: Sequence[Example]) -> DevEvaluation:
    return _evaluate(examples, [model.score(example.query, example.memories).raw for example in examples])


def evaluate_bm25(examples: Sequence[Example]) -> DevEvaluation:
    """Evaluate BM25 on the same queries, as a baseline."""
    return _evaluate(examples, [bm25(e.query, [memory.text for memory in e.memories]) for e in examples])


def _evaluate(examples: Sequence[Example], scores: Sequence[Floats]) -> DevEvaluation:
    rankings = [
        sorted(neutral_order(example), key=lambda i, raw=raw: -np.nan_to_num(raw[i], nan=-np.inf))  # type: ignore[misc]
        for example, raw in zip(examples, scores, strict=True)
    ]
    judged = [Judgments.of(example) for example in examples]
    return DevEvaluation(
        measure(judged, rankings),
        np.concatenate(scores),
        np.concatenate([each.relevant for each in judged]).astype(np.float64),
    )


@dataclass(frozen=True, slots=True)
class DevResults:
    """Metrics per query before and after training.

    :param bm25: a baseline: a base with a new head ranks at random.
    :param leaked: the number of queries that share a group or nearly all words with a training query.
    """

    queries: int
    bm25: Mapping[str, Floats]
    base: Mapping[str, Floats]
    trained: Mapping[str, Floats]
    leaked: int = 0

    def row(self, metric: str) -> tuple[Interval, Interval, Interval, Comparison]:
        """Return BM25, base and trained with intervals, and the paired difference of trained and base."""
        return (
            interval(self.bm25[metric]),
            interval(self.base[metric]),
            interval(self.trained[metric]),
            compare(self.trained[metric], self.base[metric]),
        )

    @property
    def leak_warning(self) -> str | None:
        """A sentence to print next to the figures if dev queries leaked into the training data."""
        if not self.leaked:
            return None
        return (
            f"{self.leaked} of the {self.queries} dev queries share a group or nearly all words with a training "
            "query, so the figures are optimistic."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return every reported metric with its intervals, for the manifest."""
        record: dict[str, Any] = {"queries": self.queries}
        if self.leaked:
            record["leaked"] = self.leaked
        for metric in REPORTED_METRICS:
            bm25, base, trained, gain = self.row(metric)
            record[metric] = {
                "bm25": _to_list(bm25),
                "base": _to_list(base),
                "trained": _to_list(trained),
                "gain": _to_list(gain.difference),
                "p": round(gain.p, 4),
            }
        return record


def calibrate(evaluation: DevEvaluation) -> Calibration:
    """Fit Platt scaling to the dev scores; the identity if all labels are equal."""
    is_scored = ~np.isnan(evaluation.logits)
    logits, relevant = evaluation.logits[is_scored], evaluation.relevant[is_scored]
    if not len(relevant) or relevant.max() == relevant.min() or np.ptp(logits) < 1e-9:
        return Calibration()
    fitted = fit_platt(logits, relevant)
    return Calibration(round(fitted.scale, 6), round(fitted.bias, 6))


def format_interval(value: Interval) -> str:
    """`.853 [.821, .884]`"""
    if math.isnan(value.mean):
        return "–"
    return f"{_short(value.mean)} [{_short(value.low)}, {_short(value.high)}]"


def _short(number: float) -> str:
    return f"{number:.3f}".replace("0.", ".", 1) if abs(number) < 1 else f"{number:.3f}"


def _to_list(value: Interval) -> list[float | None]:
    return [None if math.isnan(number) else round(number, 4) for number in (value.mean, value.low, value.high)]
