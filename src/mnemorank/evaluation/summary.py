"""The figures of an evaluation: the contract of `bench --json`, and what table and report show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.evaluation.benchmark import Asked, Evaluation
from mnemorank.evaluation.cache import Outcome
from mnemorank.evaluation.metrics import (
    MEASURES,
    Bin,
    Judged,
    abstention,
    expected_calibration_error,
    measure,
    pairwise_accuracy,
    pool_recall,
    reliability,
)
from mnemorank.evaluation.significance import Comparison, Interval, compare, interval

TOP = 5
INTERVALS = ("map", "mrr@10", "ndcg@10", "hit@1")


@dataclass(frozen=True, slots=True)
class Exchange:
    """Relevant memories that entered the top k against the first stage, and those that fell out of it."""

    added: int
    lost: int

    @property
    def net(self) -> int:
        return self.added - self.lost


@dataclass(frozen=True, slots=True)
class Figures:
    """What one contestant reached.

    :param values: each measure of each question, NaN where it does not apply.
    :param by_kind: means of the measures by question type, with the number of questions.
    """

    name: str
    values: Mapping[str, Floats]
    intervals: Mapping[str, Interval]
    by_kind: Mapping[str, Mapping[str, float]]
    ece: float | None
    curve: Sequence[Bin]
    pairwise: float | None
    abstention: Mapping[str, float] | None
    exchange: Exchange
    seconds: float
    pairs: int

    def mean(self, name: str) -> float | None:
        return _mean(self.values[name])

    def to_json(self) -> dict[str, Any]:
        record: dict[str, Any] = {name: self.mean(name) for name in MEASURES}
        record |= {"ece": self.ece, "seconds": self.seconds, "pairs": self.pairs}
        record["pairs_per_second"] = self.pairs / self.seconds if self.seconds else None
        if self.pairwise is not None:
            record["pairwise_accuracy"] = self.pairwise
        record |= self.abstention or {}
        record["intervals"] = {
            name: [one.low, one.high] for name, one in self.intervals.items() if not np.isnan(one.mean)
        }
        record[f"top_{TOP}_against_first_stage"] = {**asdict(self.exchange), "net": self.exchange.net}
        record["by_kind"] = self.by_kind
        record["reliability"] = [asdict(b) for b in self.curve]
        return record


@dataclass(frozen=True, slots=True)
class Summary:
    """:param ranked: questions that ranking measures are taken of.
    :param unanswerable: questions that nothing answers by design. Some are neither: no evidence is named for them.
    :param comparisons: of the first contestant with each other one, by measure: `{other: {measure: …}}`.
    """

    task: str
    path: str
    queries: int
    ranked: int
    unanswerable: int
    candidates_mean: float
    pool_recall: float | None
    loading: float
    figures: Mapping[str, Figures]
    comparisons: Mapping[str, Mapping[str, Comparison]]

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "path": self.path,
            "queries": self.queries,
            "candidates_mean": self.candidates_mean,
            "models": {name: one.to_json() for name, one in self.figures.items()},
            "ranked_queries": self.ranked,
            "unanswerable_queries": self.unanswerable,
            "pool_recall": self.pool_recall,
            "overhead_seconds": self.loading,
            "comparisons": {
                other: {name: asdict(one) for name, one in by_measure.items()}
                for other, by_measure in self.comparisons.items()
            },
        }


def summarise(evaluation: Evaluation) -> Summary:
    judged = [asked.judged for asked in evaluation.asked]
    figures = {
        name: _figures(name, evaluation.asked, judged, outcomes) for name, outcomes in evaluation.outcomes.items()
    }
    first, *others = figures.values()
    ranked = sum(one.is_ranked for one in judged)
    return Summary(
        task=evaluation.task,
        path=evaluation.path,
        queries=len(judged),
        ranked=ranked,
        unanswerable=sum(not one.answerable for one in judged),
        candidates_mean=float(np.mean([len(one.labels) for one in judged])),
        pool_recall=pool_recall(judged),
        loading=evaluation.loading,
        figures=figures,
        comparisons={
            other.name: {name: compare(first.values[name], other.values[name]) for name in INTERVALS}
            for other in others
            if ranked
        },
    )


def _figures(name: str, asked: Sequence[Asked], judged: Sequence[Judged], outcomes: Sequence[Outcome]) -> Figures:
    rankings = [outcome.ranking for outcome in outcomes]
    values = measure(judged, rankings)
    curve = _curve(judged, outcomes)
    return Figures(
        name=name,
        values=values,
        intervals={measure_name: interval(values[measure_name]) for measure_name in INTERVALS},
        by_kind=_by_kind(asked, values),
        ece=expected_calibration_error(curve),
        curve=curve,
        pairwise=_mean(pairwise_accuracy(judged, rankings)),
        abstention=_abstention(judged, outcomes),
        exchange=_exchange(asked, rankings),
        seconds=sum(outcome.seconds for outcome in outcomes),
        pairs=sum(len(outcome.ranking) for outcome in outcomes),
    )


def _by_kind(asked: Sequence[Asked], values: Mapping[str, Floats]) -> dict[str, dict[str, float]]:
    kinds = np.array([one.kind or "" for one in asked])
    is_ranked = np.array([one.judged.is_ranked for one in asked])
    result = {}
    for kind in sorted(set(kinds[is_ranked]) - {""}):
        mine = is_ranked & (kinds == kind)
        means = {name: float(values[name][mine].mean()) for name in MEASURES}
        result[str(kind)] = {"queries": int(mine.sum()), **means}
    return result


def _curve(judged: Sequence[Judged], outcomes: Sequence[Outcome]) -> list[Bin]:
    pairs = [
        (outcome.answer.relevance, one.relevant)
        for one, outcome in zip(judged, outcomes, strict=True)
        if outcome.answer.relevance is not None
    ]
    if not pairs:
        return []
    relevance = np.concatenate([relevance for relevance, _ in pairs])
    relevant = np.concatenate([relevant for _, relevant in pairs])
    known = np.isfinite(relevance)
    return reliability(relevance[known], relevant[known])


def _abstention(judged: Sequence[Judged], outcomes: Sequence[Outcome]) -> Mapping[str, float] | None:
    answerable = [one.answerable for one in judged]
    answers = [outcome.answer for outcome in outcomes]
    if all(answerable) or not any(answerable):
        return None
    best = [_best(answer.relevance) for answer in answers if answer.relevance is not None]
    said = [answer.abstained for answer in answers if answer.abstained is not None]
    if len(best) != len(answers) or len(said) != len(answers):
        return None
    return abstention(answerable, said, best)


def _best(relevance: Floats) -> float:
    """The highest; 0 where nothing was scored, as of a pool without texts."""
    return float(relevance[np.isfinite(relevance)].max(initial=0.0))


def _exchange(asked: Sequence[Asked], rankings: Sequence[Sequence[int]]) -> Exchange:
    added = lost = 0
    for one, ranking in zip(asked, rankings, strict=True):
        relevant = set(np.flatnonzero(one.judged.relevant).tolist())
        before, after = relevant & set(one.first[:TOP]), relevant & set(ranking[:TOP])
        added, lost = added + len(after - before), lost + len(before - after)
    return Exchange(added, lost)


def _mean(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
