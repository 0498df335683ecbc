"""Fit what a manifest says of the pipeline: the weights of its stages, calibration, threshold.

    python benchmarks/fit_pipeline.py FOLDER --scores scores.pkl \\
        --set memex=triplets:mrr@10:eval_70.jsonl --set sessions=longmemeval:map:lme_dev.json …
    python benchmarks/fit_pipeline.py FOLDER --scores scores.pkl --set … --choose 0.6 2.5 4 0.6

Every pair is scored once by each model and kept in `--scores`. The first call prints each set's measure by weight of
first stage and links, all weights in logits of the model. The second, with these chosen, prints each set's measure by
occasion weight, by that of asked times and by that of the closer look, calibration (each set counts alike), ECE before
and after, and what a threshold would answer and refuse: the same pools with and without what answers.
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemorank import Model, Options
from mnemorank._internal.arrays import Floats, sigmoid
from mnemorank.artifact.manifest import Calibration, FirstStage, Manifest
from mnemorank.data.benchmarks import loaders
from mnemorank.evaluation.baselines import Question
from mnemorank.evaluation.metrics import Judged, expected_calibration_error, measure, neutral_order, reliability
from mnemorank.memory.moment import Moment
from mnemorank.model.model import Scored
from mnemorank.ranking.calibration import fit_platt
from mnemorank.ranking.factors import evidence
from mnemorank.ranking.first_stage import FirstStageRanking, first_stage_weight
from mnemorank.ranking.pipeline import Pipeline
from mnemorank.ranking.stage import Times
from mnemorank.ranking.stages.rescoring import look_closer

WEIGHTS = (0.0, 0.3, 0.6, 1.0, 1.5, 2.5, 4.0)
LINKS = (0.0, 4.0, 8.0, 12.0)
OCCASIONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
ASKED_TIMES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
CLOSER = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8)
THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)
# Every leader is looked at closely, whatever the manifest says of it.
LOOKING = Options(weights={"rescoring": 1.0})
# From so many terms of the query on, BM25 counts less: RealMem's turns gain by it, all other sets are indifferent.
LONG_QUERY = 8
# Pairs drawn from each set for the calibration, so that each counts alike.
DRAWN = 4000


@dataclass(frozen=True, slots=True)
class Case:
    """A question as the pipeline gets it, with the model's scores.

    :param now: its own time or the pool's newest date, never that of the day.
    :param relevant: of the pool's memories, in the pool's order.
    :param unanswered: the scores of the same pool without its relevant memories, among which others lead.
    """

    query: str
    pool: list[Any]
    now: Moment
    relevant: NDArray[np.bool_]
    scored: Scored
    first_stage: FirstStageRanking
    unanswered: Scored


Sets = dict[str, tuple[str, list[Case]]]


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights in logits of the model, but for the closer look's, which is a share."""

    whole: float
    in_part: float
    links: float
    closer: float

    @property
    def first_stage(self) -> FirstStage:
        return FirstStage(self.whole, in_part=self.in_part, long_query=LONG_QUERY)


class Given:
    """A model whose scores are at hand."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest


def read_cases(model: Model, task: str, path: Path, limit: int | None) -> Iterator[Case]:
    loader = loaders[task]
    for example in islice(loader.read(path), limit):
        order = neutral_order(example)
        pool = [example.candidates[i].memory for i in order]
        relevant = Judged.of(example).relevant[order]
        first_stage = FirstStageRanking.of(example.query, pool, "auto")
        query = example.query
        now = Question(example.id, query, pool, example.query_time).now
        scored = model.score(query, pool)
        stage = Pipeline(query, pool, LOOKING, Times.parse(now, None, None), first_stage, model)
        unanswered = replace(scored, raw=np.where(relevant, np.nan, scored.raw))
        both = [looked_at(each, stage, model) for each in (scored, unanswered)]
        yield Case(query, pool, now, relevant, both[0], first_stage, both[1])


def looked_at(scored: Scored, stage: Pipeline, model: Model) -> Scored:
    ask = partial(model.score, stage.query)
    return look_closer(stage.query, ask, stage.pool, stage.leaders(scored), scored, print)


def figure(cases: Sequence[Case], manifest: Manifest, name: str) -> float:
    """The mean of a measure over the questions that have an answer, through the whole pipeline."""
    judged, rankings = [], []
    for case in cases:
        if not case.relevant.any():
            continue
        scored = replace(case.scored, manifest=manifest)
        times = Times.parse(case.now, None, None)
        stage = Pipeline(case.query, case.pool, Options(), times, case.first_stage, Given(manifest))  # type: ignore[arg-type]
        ranking = stage.rank(scored, None, None, False, (), ())
        judged.append(Judged(case.relevant.astype(np.float64), case.relevant))
        rankings.append([result.index for result in ranking])
    return float(np.mean(measure(judged, rankings)[name]))


def figures(sets: Sets, manifest: Manifest) -> str:
    """A row of a table: each set's measure, and their mean."""
    found = [figure(cases, manifest, name) for name, cases in sets.values()]
    return "  ".join(f"{f:12.4f}" for f in found) + f"  {np.mean(found):.4f}"


def weights_table(sets: Sets, manifest: Manifest) -> None:
    print("weight  links  " + "  ".join(f"{name:>12}" for name in sets) + "    mean")
    for weight in WEIGHTS:
        first = FirstStage(weight, long_query=LONG_QUERY)
        for links in LINKS:
            tried = replace(manifest, calibration=Calibration(), first_stage=first, link_weight=links)
            print(f"{weight:6}  {links:5}  " + figures(sets, tried))


def other_tables(sets: Sets, manifest: Manifest, weights: Weights) -> None:
    chosen = replace(
        manifest,
        calibration=Calibration(),
        first_stage=weights.first_stage,
        link_weight=weights.links,
        closer_weight=weights.closer,
    )
    for field, values in (
        ("occasion_weight", OCCASIONS),
        ("asked_time_weight", ASKED_TIMES),
        ("closer_weight", CLOSER),
    ):
        print(f"{field:>17}  " + "  ".join(f"{name:>12}" for name in sets) + "    mean")
        for value in values:
            print(f"{value:17}  " + figures(sets, replace(chosen, **{field: value})))


def with_evidence(case: Case, weights: Weights, keep: NDArray[np.bool_]) -> Floats:
    """The model's logits with what a closer look and the first stage say, for the memories kept: what the calibration
    is fitted on."""
    scored = case.scored if keep.all() else case.unanswered
    first = first_stage_weight(weights.first_stage, case.query, case.scored, case.first_stage.by_words)
    logits = scored.raw
    if scored.closer is not None:
        logits = np.where(np.isfinite(scored.closer), logits + weights.closer * (scored.closer - logits), logits)
    return np.asarray(logits[keep] + evidence(case.first_stage.scores[keep], first, "score"), dtype=np.float64)


def fit(sets: Sets, weights: Weights) -> None:
    rng = np.random.default_rng(0)
    logits, labels = [], []
    for _, cases in sets.values():
        found = [with_evidence(c, weights, np.ones(len(c.pool), dtype=bool)) for c in cases]
        x, y = np.concatenate(found), np.concatenate([case.relevant for case in cases])
        drawn = rng.integers(0, int(np.isfinite(x).sum()), DRAWN)
        logits.append(x[np.isfinite(x)][drawn])
        labels.append(y[np.isfinite(x)][drawn].astype(np.float64))
    fitted = fit_platt(np.concatenate(logits), np.concatenate(labels))
    print(f"calibration: scale {fitted.scale:.4f}, bias {fitted.bias:.4f}")
    print(f"first_stage: weight {fitted.scale * weights.whole:.3f}, in_part {fitted.scale * weights.in_part:.3f}")
    print(f"link_weight: {fitted.scale * weights.links:.2f}; asked_time_weight: {fitted.scale:.2f} a logit")
    for name, x, y in zip(
        [*sets, "all"], [*logits, np.concatenate(logits)], [*labels, np.concatenate(labels)], strict=True
    ):
        before, after = (error(chance, y) for chance in (sigmoid(x), sigmoid(fitted.scale * x + fitted.bias)))
        print(f"  {name}: ECE {before:.3f} → {after:.3f}, {y.mean():.3f} relevant")
    thresholds(sets, fitted, weights)


def error(chance: Floats, labels: Floats) -> float:
    return expected_calibration_error(reliability(chance, labels > 0)) or 0.0


def thresholds(sets: Sets, fitted: Calibration, weights: Weights) -> None:
    best: dict[str, tuple[list[float], list[float]]] = {}
    for name, (_, cases) in sets.items():
        with_answer: list[float] = []
        without: list[float] = []
        for case in cases:
            for keep, into in ((np.ones(len(case.pool), dtype=bool), with_answer), (~case.relevant, without)):
                if keep.sum() > 1 and (into is without or case.relevant.any()):
                    top = np.nanmax(with_evidence(case, weights, keep))
                    into.append(float(sigmoid(np.array([fitted.scale * top + fitted.bias]))[0]))
        best[name] = with_answer, without
    print("threshold: answered where there is an answer / refused where there is none")
    for threshold in THRESHOLDS:
        shares = {
            name: (np.mean(np.array(a) >= threshold), np.mean(np.array(b) < threshold)) for name, (a, b) in best.items()
        }
        mean = np.mean([sum(pair) / 2 for pair in shares.values()])
        print(
            f"  {threshold}: "
            + "  ".join(f"{n} {a:.2f}/{b:.2f}" for n, (a, b) in shares.items())
            + f"  mean {mean:.3f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--set", action="append", required=True, help="name=task:measure:path")
    parser.add_argument("--limit", type=int, help="questions of each set")
    parser.add_argument("--scores", type=Path, required=True, help="a file of our own to keep scores in (pickle)")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--choose", type=float, nargs=4, metavar=("WEIGHT", "IN_PART", "LINKS", "CLOSER"))
    arguments = parser.parse_args()
    model = Model.load(arguments.model, threads=arguments.threads)
    kept: dict[str, list[Case]] = pickle.loads(arguments.scores.read_bytes()) if arguments.scores.exists() else {}
    sets: Sets = {}
    for stated in arguments.set:
        name, _, rest = stated.partition("=")
        task, measured, path = rest.split(":", 2)
        key = f"4 {model.manifest.files.get('model.onnx', model.fingerprint)} {task} {path} {arguments.limit}"
        if key not in kept:
            kept[key] = list(read_cases(model, task, Path(path), arguments.limit))
            arguments.scores.write_bytes(pickle.dumps(kept))
            print(f"{name}: {len(kept[key])} questions scored", flush=True)
        sets[name] = measured, kept[key]
    if arguments.choose:
        weights = Weights(*arguments.choose)
        other_tables(sets, model.manifest, weights)
        fit(sets, weights)
    else:
        weights_table(sets, model.manifest)


if __name__ == "__main__":
    main()
