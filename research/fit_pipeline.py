"""Fit a model's calibration, pipeline weights and abstention threshold on dev sets.

    python research/fit_pipeline.py mini --set memex=triplets:mrr@10:eval.jsonl --set sessions=longmemeval:map:dev.json
    python research/fit_pipeline.py mini --set … --weight first_stage=0,0.2,0.4 --weight same_day=0,0.1

Prints the calibration of the raw scores (every set counts equally) with the calibration error before and after, a table
of each set's measure for every value of every `--weight`, the others as in the manifest, and what each threshold would
answer and refuse: the same pools with and without their relevant memories. `--replaced-above` shows how many outdated
memories each threshold puts below the current ones. Raw scores are kept in `--scores`, so that
a second call is fast.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mnemorank import Memory, Model, Options, Reranker
from mnemorank._internal.arrays import Floats, sigmoid
from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.calibration import fit_platt, model_odds
from mnemorank.artifact.manifest import Calibration, Manifest
from mnemorank.data.benchmarks import loaders
from mnemorank.evaluation.metrics import Judgments, expected_calibration_error, measure, neutral_order, reliability
from mnemorank.evaluation.protocol import Question
from mnemorank.memory.moment import Moment
from mnemorank.model.judge import Judge
from mnemorank.model.model import Scored

THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
PAIRS_PER_SET = 4000


class CachingModel:
    """A model that caches the score of every pair of query and memory."""

    def __init__(self, model: Model, path: Path) -> None:
        self.model, self.path = model, path
        self.manifest: Manifest = model.manifest
        self.judge = Judge.of(model.scorer, model.manifest)
        self.cache: dict[tuple[str, str], tuple[float, str | None]] = {}
        if path.exists():
            fingerprint, cache = pickle.loads(path.read_bytes())
            self.cache = cache if fingerprint == model.fingerprint else {}

    def score(
        self,
        query: str,
        memories: Sequence[Memory],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scored:
        keys = [(query, repr(memory)) for memory in memories]
        new = [i for i, key in enumerate(keys) if key not in self.cache]
        if new:
            scored = self.model.score(query, [memories[i] for i in new])
            for i, raw, matched in zip(new, scored.raw, scored.matched, strict=True):
                self.cache[keys[i]] = float(raw), matched
        entries = [self.cache[key] for key in keys]
        raw = np.array([raw for raw, _ in entries])
        return Scored(raw, [matched for _, matched in entries], self.manifest, self.judge)

    def count_tokens(self, memories: Sequence[Memory]) -> list[int]:
        return self.model.count_tokens(memories)

    def save(self) -> None:
        self.path.write_bytes(pickle.dumps((self.model.fingerprint, self.cache)))

    def close(self) -> None:
        self.model.close()


@dataclass(frozen=True, slots=True)
class Case:
    """A question with its candidates.

    :param now: the time of the question or of the newest memory, never the current time.
    :param pairs: positions of a current and an outdated memory.
    """

    query: str
    pool: list[Memory]
    now: Moment
    relevant: NDArray[np.bool_]
    kind: str | None
    pairs: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class DevSet:
    name: str
    metric: str
    cases: list[Case]


def read_set(argument: str, limit: int | None) -> DevSet:
    name, _, rest = argument.partition("=")
    task, metric, path = rest.split(":", 2)
    cases = []
    for example in islice(loaders[task].read(Path(path)), limit):
        order = neutral_order(example)
        pool = [example.candidates[i].memory for i in order]
        now = Question(example.id, example.query, pool, example.query_time).now
        place = {position: i for i, position in enumerate(order)}
        pairs = [(place[current], place[outdated]) for current, outdated in example.pairs]
        cases.append(Case(example.query, pool, now, Judgments.of(example).relevant[order], example.kind, pairs))
    return DevSet(name, metric, cases)


def figure(dev: DevSet, model: CachingModel, options: Options) -> float:
    """Return the mean of the set's metric over the questions that have an answer."""
    reranker = Reranker(model, options=options)
    judged, rankings = [], []
    for case in dev.cases:
        if case.relevant.any():
            ranking = reranker.rerank(case.query, case.pool, now=case.now)
            judged.append(Judgments(case.relevant.astype(np.float64), case.relevant))
            rankings.append([result.index for result in ranking])
    return float(np.mean(measure(judged, rankings)[dev.metric]))


def print_weights(sets: Sequence[DevSet], model: CachingModel, name: str, values: Sequence[float]) -> None:
    print(f"{name:>22}  " + "  ".join(f"{dev.name:>12}" for dev in sets) + "    mean")
    for value in values:
        figures = [figure(dev, model, Options(weights={name: value})) for dev in sets]
        print(f"{value:22}  " + "  ".join(f"{f:12.4f}" for f in figures) + f"  {np.mean(figures):.4f}", flush=True)


def print_replacement(sets: Sequence[DevSet], model: CachingModel, values: Sequence[float]) -> None:
    """Print what each threshold of `replaced_above` does, for all questions but those about the past."""
    print("replaced_above: outdated below current, the set's measure")
    shipped = model.manifest
    for value in values:
        model.manifest = replace(shipped, replaced_above=value)
        cells = []
        for dev in sets:
            cases = [case for case in dev.cases if case.pairs and case.kind != "past"]
            below = []
            for case in cases:
                ranks = {r.index: r.rank for r in Reranker(model).rerank(case.query, case.pool, now=case.now)}
                best = {old: min(ranks[c] for c, o in case.pairs if o == old) for _, old in case.pairs}
                below += [rank < ranks[old] for old, rank in best.items()]
            share = f"{np.mean(below):.3f}" if below else "–"
            cells.append(f"{dev.name} {share} {figure(dev, model, Options()):.4f}")
        print(f"  {value}: " + "  ".join(cells), flush=True)
    model.manifest = shipped


def fit_calibration(sets: Sequence[DevSet], model: CachingModel) -> Calibration:
    """Fit the calibration on as many pairs of each set, and print the error it leaves."""
    rng = np.random.default_rng(0)
    plain = replace(model.manifest, calibration=Calibration())
    logits, labels = [], []
    for dev in sets:
        x = np.concatenate([model_odds(model.score(case.query, case.pool).raw, plain) for case in dev.cases])
        y = np.concatenate([case.relevant for case in dev.cases])
        drawn = rng.choice(np.flatnonzero(np.isfinite(x)), PAIRS_PER_SET)
        logits.append(x[drawn])
        labels.append(y[drawn].astype(np.float64))
    fitted = fit_platt(np.concatenate(logits), np.concatenate(labels))
    print(f"calibration: scale {fitted.scale:.4f}, bias {fitted.bias:.4f}")
    now = model.manifest.calibration
    for dev, x, y in zip(sets, logits, labels, strict=True):
        before, after = (_calibration_error(sigmoid(c.scale * x + c.bias), y) for c in (now, fitted))
        print(f"  {dev.name}: ECE {before:.3f} → {after:.3f}, {y.mean():.3f} relevant")
    return fitted


def print_thresholds(sets: Sequence[DevSet], model: CachingModel, calibration: Calibration) -> None:
    manifest = replace(model.manifest, calibration=calibration)
    best: dict[str, tuple[list[float], list[float]]] = {}
    for dev in sets:
        answerable: list[float] = []
        unanswerable: list[float] = []
        for case in dev.cases:
            relevance = sigmoid(model_odds(model.score(case.query, case.pool).raw, manifest))
            if case.relevant.any():
                answerable.append(float(np.nanmax(relevance)))
            if not case.relevant.all():
                unanswerable.append(float(np.nanmax(relevance[~case.relevant])))
        best[dev.name] = answerable, unanswerable
    print("threshold: share answered of the answerable / share refused of the unanswerable")
    for threshold in THRESHOLDS:
        shares = {
            name: (float(np.mean(np.array(a) >= threshold)), float(np.mean(np.array(b) < threshold)))
            for name, (a, b) in best.items()
        }
        mean = np.mean([sum(pair) / 2 for pair in shares.values()])
        print(f"  {threshold}: " + "  ".join(f"{n} {a:.2f}/{b:.2f}" for n, (a, b) in shares.items()) + f"  {mean:.3f}")


def _calibration_error(probability: Floats, labels: Floats) -> float:
    return expected_calibration_error(reliability(probability, labels > 0)) or 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--set", action="append", required=True, help="name=task:metric:path")
    parser.add_argument("--weight", action="append", default=[], help="name=value,value,…: try these")
    parser.add_argument("--replaced-above", default="", help="value,value,…: try these")
    parser.add_argument("--limit", type=int, help="questions of each set")
    parser.add_argument("--scores", type=Path, default=Path("scores.pkl"), help="keep raw scores here (pickle)")
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    model = CachingModel(Model.load(arguments.model, threads=arguments.threads), arguments.scores)
    sets = [read_set(stated, arguments.limit) for stated in arguments.set]
    calibration = fit_calibration(sets, model)
    model.save()
    print_thresholds(sets, model, calibration)
    for stated in arguments.weight:
        name, _, values = stated.partition("=")
        print_weights(sets, model, name, [float(value) for value in values.split(",")])
        model.save()
    if arguments.replaced_above:
        print_replacement(sets, model, [float(value) for value in arguments.replaced_above.split(",")])


if __name__ == "__main__":
    main()
