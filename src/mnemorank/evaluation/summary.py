"""The figures of a benchmark run, as `bench` prints them and writes them to JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.evaluation.benchmark import BenchmarkRun, JudgedQuestion
from mnemorank.evaluation.metrics import (
    MEASURES,
    Abstention,
    Bin,
    Judgments,
    expected_calibration_error,
    measure,
    measure_abstention,
    pairwise_accuracy,
    pool_recall,
    reliability,
)
from mnemorank.evaluation.protocol import Prediction
from mnemorank.evaluation.significance import Comparison, Interval, compare, interval

TOP_K = 5
INTERVALS = ("map", "mrr@10", "ndcg@10", "hit@1")


@dataclass(frozen=True, slots=True)
class TopKChange:
    """How many relevant memories a system added to the first stage's top k, and how many it lost."""

    added: int
    lost: int

    @property
    def net(self) -> int:
        return self.added - self.lost


@dataclass(frozen=True, slots=True)
class SystemSummary:
    """The figures of one system.

    :param values: each metric of each question; NaN where it is not defined.
    :param by_kind: the mean of each metric by kind of question, with the number of questions.
    :param pairs_metric: the name of `pairwise`.
    :param pairwise: the accuracy on the pairs that the benchmark compares; None without pairs.
    :param pairs: the number of pairs of query and memory that were scored.
    """

    name: str
    values: Mapping[str, Floats]
    intervals: Mapping[str, Interval]
    by_kind: Mapping[str, Mapping[str, float]]
    ece: float | None
    reliability: Sequence[Bin]
    pairs_metric: str
    pairwise: float | None
    abstention: Abstention | None
    top_k_change: TopKChange
    seconds: float
    pairs: int

    def mean(self, metric: str) -> float | None:
        return _mean(self.values[metric])

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {name: self.mean(name) for name in MEASURES}
        record |= {"ece": self.ece, "seconds": self.seconds, "pairs": self.pairs}
        record["pairs_per_second"] = self.pairs / self.seconds if self.seconds else None
        if self.pairwise is not None:
            record[self.pairs_metric] = self.pairwise
        if self.abstention is not None:
            record["abstention"] = asdict(self.abstention)
        record["intervals"] = {
            name: [spread.low, spread.high] for name, spread in self.intervals.items() if not np.isnan(spread.mean)
        }
        record[f"top_{TOP_K}_vs_first_stage"] = {**asdict(self.top_k_change), "net": self.top_k_change.net}
        record["by_kind"] = self.by_kind
        record["reliability"] = [asdict(b) for b in self.reliability]
        return record


@dataclass(frozen=True, slots=True)
class BenchmarkSummary:
    """The figures of a benchmark run.

    :param with_relevant: the number of questions with a relevant memory, on which ranking metrics are taken.
    :param unanswerable: the number of questions that no memory answers by design. A question may be neither, if the
        benchmark names no evidence for it.
    :param comparisons: the first system compared with each other one: `{other: {metric: …}}`.
    """

    task: str
    path: str
    queries: int
    with_relevant: int
    unanswerable: int
    candidates_mean: float
    pool_recall: float | None
    overhead_seconds: float
    systems: Mapping[str, SystemSummary]
    comparisons: Mapping[str, Mapping[str, Comparison]]

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "path": self.path,
            "queries": self.queries,
            "candidates_mean": self.candidates_mean,
            "models": {name: system.to_json() for name, system in self.systems.items()},
            "queries_with_relevant": self.with_relevant,
            "unanswerable_queries": self.unanswerable,
            "pool_recall": self.pool_recall,
            "overhead_seconds": self.overhead_seconds,
            "comparisons": {
                other: {name: asdict(comparison) for name, comparison in by_metric.items()}
                for other, by_metric in self.comparisons.items()
            },
        }


def summarize(run: BenchmarkRun) -> BenchmarkSummary:
    """Compute the figures of a benchmark run."""
    judgments = [question.judgments for question in run.questions]
    systems = {name: _summarize_system(name, run, judgments) for name in run.predictions}
    first, *others = systems.values()
    with_relevant = sum(question.has_relevant for question in judgments)
    return BenchmarkSummary(
        task=run.task,
        path=run.path,
        queries=len(judgments),
        with_relevant=with_relevant,
        unanswerable=sum(not question.answerable for question in judgments),
        candidates_mean=float(np.mean([len(question.labels) for question in judgments])),
        pool_recall=pool_recall(judgments),
        overhead_seconds=run.overhead_seconds,
        systems=systems,
        comparisons={
            other.name: {name: compare(first.values[name], other.values[name]) for name in INTERVALS}
            for other in others
            if with_relevant
        },
    )


def _summarize_system(name: str, run: BenchmarkRun, judgments: Sequence[Judgments]) -> SystemSummary:
    predictions = run.predictions[name]
    rankings = [prediction.ranking for prediction in predictions]
    values = measure(judgments, rankings)
    bins = _reliability(judgments, predictions)
    return SystemSummary(
        name=name,
        values=values,
        intervals={metric: interval(values[metric]) for metric in INTERVALS},
        by_kind=_by_kind(run.questions, values),
        ece=expected_calibration_error(bins),
        reliability=bins,
        pairs_metric=run.pairs_metric,
        pairwise=_mean(pairwise_accuracy(judgments, rankings)),
        abstention=_abstention(judgments, predictions),
        top_k_change=_top_k_change(run.questions, rankings),
        seconds=sum(prediction.seconds for prediction in predictions),
        pairs=sum(len(ranking) for ranking in rankings),
    )


def _by_kind(questions: Sequence[JudgedQuestion], values: Mapping[str, Floats]) -> dict[str, dict[str, float]]:
    kinds = np.array([question.kind or "" for question in questions])
    has_relevant = np.array([question.judgments.has_relevant for question in questions])
    result = {}
    for kind in sorted(set(kinds[has_relevant]) - {""}):
        mask = has_relevant & (kinds == kind)
        means = {name: float(values[name][mask].mean()) for name in MEASURES}
        result[str(kind)] = {"queries": int(mask.sum()), **means}
    return result


def _reliability(judgments: Sequence[Judgments], predictions: Sequence[Prediction]) -> list[Bin]:
    pairs = [
        (prediction.relevance, question.relevant)
        for question, prediction in zip(judgments, predictions, strict=True)
        if prediction.relevance is not None
    ]
    if not pairs:
        return []
    relevance = np.concatenate([relevance for relevance, _ in pairs])
    relevant = np.concatenate([relevant for _, relevant in pairs])
    is_scored = np.isfinite(relevance)
    return reliability(relevance[is_scored], relevant[is_scored])


def _abstention(judgments: Sequence[Judgments], predictions: Sequence[Prediction]) -> Abstention | None:
    answerable = [question.answerable for question in judgments]
    if all(answerable) or not any(answerable):
        return None
    has_relevance = all(prediction.relevance is not None for prediction in predictions)
    best = [_best(prediction, has_relevance) for prediction in predictions]
    abstained = [prediction.abstained for prediction in predictions if prediction.abstained is not None]
    return measure_abstention(answerable, best, abstained if len(abstained) == len(predictions) else None)


def _best(prediction: Prediction, has_relevance: bool) -> float:
    """Return the highest relevance or score; the lowest possible one if nothing was scored."""
    if has_relevance and prediction.relevance is not None:
        return float(prediction.relevance[np.isfinite(prediction.relevance)].max(initial=0.0))
    return float(prediction.scores[np.isfinite(prediction.scores)].max(initial=-np.inf))


def _top_k_change(questions: Sequence[JudgedQuestion], rankings: Sequence[Sequence[int]]) -> TopKChange:
    added = lost = 0
    for question, ranking in zip(questions, rankings, strict=True):
        relevant = set(np.flatnonzero(question.judgments.relevant).tolist())
        before, after = relevant & set(question.first_stage[:TOP_K]), relevant & set(ranking[:TOP_K])
        added, lost = added + len(after - before), lost + len(before - after)
    return TopKChange(added, lost)


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
