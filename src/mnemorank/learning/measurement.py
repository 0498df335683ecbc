"""Measure a model for the gate: quality on each evaluation set, calibration, time per pair, size."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.arrays import Floats
from mnemorank.artifact.resolve import load_artifact
from mnemorank.data.examples import Example
from mnemorank.errors import ScorerError
from mnemorank.evaluation.metrics import Judgments, expected_calibration_error, measure, neutral_order, reliability
from mnemorank.evaluation.protocol import Question
from mnemorank.model.model import Model, Scoring, score_with_truncation
from mnemorank.reranker import Reranker

_TIMED_PAIRS = 64
_TIMED_ROUNDS = 3


def _do_nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class SetResult:
    """Metrics of a model on one evaluation set.

    :param by_metric: metric → value per query; NaN for queries without a relevant memory.
    :param weights: weight of each query; 1 by default. Feedback on ranks that are rarely examined weighs more.
    """

    by_metric: Mapping[str, Floats]
    weights: Floats | None = None

    def values(self, metric: str) -> Floats:
        """Return the values of the queries with a relevant memory, each times its weight over the mean weight."""
        values = self.by_metric[metric]
        is_known = ~np.isnan(values)
        if self.weights is None or not is_known.any():
            return values[is_known]
        weights = self.weights[is_known]
        weighted: Floats = values[is_known] * weights / weights.mean()
        return weighted

    def mean(self, metric: str) -> float:
        values = self.values(metric)
        return float(values.mean()) if len(values) else 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """Everything that the gate compares.

    :param sets: results by name of the evaluation set.
    :param ece: expected calibration error over all sets.
    """

    sets: Mapping[str, SetResult]
    ece: float
    seconds_per_pair: float
    size_bytes: int

    def summary(self, metrics: Sequence[str] = ("map", "mrr@10", "ndcg@10", "hit@1")) -> dict[str, object]:
        """Return rounded figures for the history."""
        sets = {
            name: {"queries": len(result.values("map")), **{m: round(result.mean(m), 5) for m in metrics}}
            for name, result in self.sets.items()
        }
        return {
            "sets": sets,
            "ece": round(self.ece, 5),
            "seconds_per_pair": self.seconds_per_pair,
            "size_bytes": self.size_bytes,
        }


def measure_models(
    paths: Sequence[Path],
    sets: Mapping[str, Sequence[Example]],
    on_query: Callable[[], None] = _do_nothing,
) -> list[Measurement]:
    """Measure models side by side, with the full pipeline.

    :param on_query: called after every query; an exception stops the measurement.
    """
    models: list[Model] = []
    try:
        for path in paths:
            models.append(Model.load(path, probe=False))
        times = _seconds_per_pair(models, sets)
        return [
            measure_model(model, sets, seconds, _size_bytes(path), on_query)
            for model, path, seconds in zip(models, paths, times, strict=True)
        ]
    finally:
        for model in models:
            model.close()


def measure_model(
    model: Scoring,
    sets: Mapping[str, Sequence[Example]],
    seconds_per_pair: float = 0.0,
    size_bytes: int = 0,
    on_query: Callable[[], None] = _do_nothing,
) -> Measurement:
    """Measure a loaded model."""
    reranker = Reranker(model)
    results = {}
    predicted: list[Floats] = []
    relevant: list[NDArray[np.bool_]] = []
    for name, examples in sets.items():
        judgments = [Judgments.of(example) for example in examples]
        rankings = []
        for example, judgment in zip(examples, judgments, strict=True):
            ranking, relevance = _rank(reranker, example)
            rankings.append(ranking)
            # The label of a candidate with weight 0 is a guess and says nothing about calibration.
            is_known = np.isfinite(relevance) & np.array([candidate.weight > 0 for candidate in example.candidates])
            predicted.append(relevance[is_known])
            relevant.append(judgment.relevant[is_known])
            on_query()
        weights = np.array([example_weight(example) for example in examples])
        results[name] = SetResult(measure(judgments, rankings), weights)
    ece = 0.0
    if predicted:
        ece = expected_calibration_error(reliability(np.concatenate(predicted), np.concatenate(relevant))) or 0.0
    return Measurement(results, ece, seconds_per_pair, size_bytes)


def example_weight(example: Example) -> float:
    """Return the mean weight of the relevant candidates."""
    weights = [candidate.weight for candidate in example.candidates if candidate.label > 0]
    return sum(weights) / len(weights) if weights else 1.0


def _rank(reranker: Reranker, example: Example) -> tuple[list[int], Floats]:
    """The ranking as indexes of candidates, and the relevance of each candidate."""
    order = neutral_order(example)
    question = Question(example.id, example.query, [example.candidates[i].memory for i in order], example.query_time)
    ranking = reranker.rerank(question.query, question.memories, now=question.now)
    if ranking.degraded:
        raise ScorerError(f"query {example.id}: {ranking.degraded}")
    relevance = np.full(len(order), np.nan)
    for result in ranking:
        if result.relevance is not None:
            relevance[order[result.index]] = result.relevance
    return [order[result.index] for result in ranking], relevance


def _seconds_per_pair(models: Sequence[Model], sets: Mapping[str, Sequence[Example]]) -> list[float]:
    """The best of several rounds, in which the models take turns, so that a busy machine affects all equally."""
    sample: list[Example] = []
    pairs = 0
    for example in (example for examples in sets.values() for example in examples):
        if pairs >= _TIMED_PAIRS:
            break
        sample.append(example)
        pairs += len(example.candidates)
    best = [float("inf")] * len(models)
    for _ in range(_TIMED_ROUNDS if sample else 0):
        for index, model in enumerate(models):
            started = time.perf_counter()
            for example in sample:
                score_with_truncation(model, example.query, example.memories)
            best[index] = min(best[index], (time.perf_counter() - started) / pairs)
    return best


def _size_bytes(path: Path) -> int:
    """Size of the files that are served."""
    artifact = load_artifact(path)
    names = artifact.manifest.files or {entry.name: "" for entry in artifact.path.iterdir() if entry.is_file()}
    return sum((artifact.path / name).stat().st_size for name in names)
