"""Measuring a model for the gate: quality on each set, calibration, time per pair, size."""

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

Tick = Callable[[], None]
_TIMED_PAIRS = 64


@dataclass(frozen=True, slots=True)
class SetResult:
    """:param by_metric: each measure of each question; NaN for those without anything relevant.
    :param weights: what each question counts; 1 by default. Feedback counts more where a look was less likely.
    """

    by_metric: Mapping[str, Floats]
    weights: Floats | None = None

    def values(self, metric: str) -> Floats:
        """By question that has something relevant, each times its weight over their mean."""
        found = self.by_metric[metric]
        known = ~np.isnan(found)
        if self.weights is None or not known.any():
            return found[known]
        weights = self.weights[known]
        weighed: Floats = found[known] * weights / weights.mean()
        return weighed

    def mean(self, metric: str) -> float:
        values = self.values(metric)
        return float(values.mean()) if len(values) else 0.0


@dataclass(frozen=True, slots=True)
class Measurement:
    """:param sets: results by name of the set.
    :param ece: expected calibration error over all sets.
    """

    sets: Mapping[str, SetResult]
    ece: float
    seconds_per_pair: float
    bytes: int

    def summary(self, metrics: Sequence[str] = ("map", "mrr@10", "ndcg@10", "hit@1")) -> dict[str, object]:
        """The figures, for the history."""
        sets = {
            name: {"queries": len(found.values("map")), **{m: round(found.mean(m), 5) for m in metrics}}
            for name, found in self.sets.items()
        }
        return {"sets": sets, "ece": round(self.ece, 5), "seconds_per_pair": self.seconds_per_pair, "bytes": self.bytes}


def measure_models(
    models: Sequence[Path], sets: Mapping[str, Sequence[Example]], tick: Tick = lambda: None
) -> list[Measurement]:
    """Measure models side by side, as users run them (windows, calibration, blend).

    :param tick: called after every question; what it raises stops the measurement.
    """
    loaded: list[Model] = []
    try:
        for path in models:
            loaded.append(Model.load(path, probe=False))
        times = _seconds_per_pair(loaded, sets)
        return [
            measure_scoring(model, sets, seconds, _bytes(path), tick)
            for model, path, seconds in zip(loaded, models, times, strict=True)
        ]
    finally:
        for model in loaded:
            model.close()


def measure_scoring(
    model: Scoring,
    sets: Mapping[str, Sequence[Example]],
    seconds_per_pair: float = 0.0,
    size: int = 0,
    tick: Tick = lambda: None,
) -> Measurement:
    """Measure one model that is already loaded."""
    reranker = Reranker(model)
    results = {}
    predicted: list[Floats] = []
    relevant: list[NDArray[np.bool_]] = []
    for name, examples in sets.items():
        judged = [Judgments.of(example) for example in examples]
        rankings = []
        for example, one in zip(examples, judged, strict=True):
            ranking, relevance = _ask(reranker, example)
            rankings.append(ranking)
            # A candidate of weight 0 stands in the list, but its label is a guess.
            known = np.isfinite(relevance) & np.array([candidate.weight > 0 for candidate in example.candidates])
            predicted.append(relevance[known])
            relevant.append(one.relevant[known])
            tick()
        results[name] = SetResult(measure(judged, rankings), np.array([weight_of(example) for example in examples]))
    ece = 0.0
    if predicted:
        ece = expected_calibration_error(reliability(np.concatenate(predicted), np.concatenate(relevant))) or 0.0
    return Measurement(results, ece, seconds_per_pair, size)


def weight_of(example: Example) -> float:
    """What an example counts: the mean weight of what is relevant in it."""
    weights = [candidate.weight for candidate in example.candidates if candidate.label > 0]
    return sum(weights) / len(weights) if weights else 1.0


def _ask(reranker: Reranker, example: Example) -> tuple[list[int], Floats]:
    """The ranking as positions of the candidates, and each candidate's relevance."""
    order = neutral_order(example)
    asked = Question(example.id, example.query, [example.candidates[i].memory for i in order], example.query_time)
    found = reranker.rerank(asked.query, asked.memories, now=asked.now)
    if found.degraded:
        raise ScorerError(f"question {example.id}: {found.degraded}")
    relevance = np.full(len(order), np.nan)
    for result in found:
        if result.relevance is not None:
            relevance[order[result.index]] = result.relevance
    return [order[result.index] for result in found], relevance


def _seconds_per_pair(models: Sequence[Model], sets: Mapping[str, Sequence[Example]]) -> list[float]:
    """The best of three turns each, taken in turn, so that a busy machine is unfair to nobody."""
    sample: list[Example] = []
    pairs = 0
    for example in (example for examples in sets.values() for example in examples):
        if pairs >= _TIMED_PAIRS:
            break
        sample.append(example)
        pairs += len(example.candidates)
    best = [float("inf")] * len(models)
    for _ in range(3 if sample else 0):
        for number, model in enumerate(models):
            started = time.perf_counter()
            for example in sample:
                score_with_truncation(model, example.query, example.memories)
            best[number] = min(best[number], (time.perf_counter() - started) / pairs)
    return best


def _bytes(path: Path) -> int:
    """Size of what is served: the artifact's own files."""
    artifact = load_artifact(path)
    names = artifact.manifest.files or {entry.name: "" for entry in artifact.path.iterdir() if entry.is_file()}
    return sum((artifact.path / name).stat().st_size for name in names)
