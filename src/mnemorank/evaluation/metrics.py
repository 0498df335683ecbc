"""Metrics of rankings (by ir-measures), calibration and abstention.

Ties follow one rule for all systems and metrics: equal scores keep the order of `neutral_order`, which is drawn from a
hash of question and memory and knows neither the labels nor the order of the file. ir-measures receives ranks instead
of scores, so that its own tie rule never applies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.arrays import Floats
from mnemorank.data.examples import Example
from mnemorank.errors import MissingExtraError

MEASURES = ("map", "mrr@10", "ndcg@10", "recall@5", "recall@10", "hit@1", "hit@3", "hit@5", "hit@10")
_IR_NAMES = {
    "map": "AP",
    "mrr@10": "RR@10",
    "recall@5": "R@5",
    "recall@10": "R@10",
    "hit@1": "Success@1",
    "hit@3": "Success@3",
    "hit@5": "Success@5",
    "hit@10": "Success@10",
}
_GRADES = 1000  # trec_eval takes whole numbers; NDCG does not depend on their scale


@dataclass(frozen=True, slots=True)
class Judgments:
    """The labels of one question.

    :param relevant: which candidates count as relevant in binary metrics.
    :param missing: labels of relevant memories that are not among the candidates; they count in every metric.
    :param pairs: pairs of positions; the first candidate should rank above the second.
    """

    labels: Floats
    relevant: NDArray[np.bool_]
    missing: Sequence[float] = ()
    answerable: bool = True
    pairs: Sequence[tuple[int, int]] = ()

    @classmethod
    def of(cls, example: Example) -> Judgments:
        """Return the judgments of an example."""
        labels = np.array(example.labels, dtype=np.float64)
        relevant = labels >= example.relevant_from if example.relevant_from > 0 else labels > 0
        return cls(labels, relevant, example.missing, example.answerable, example.pairs)

    @property
    def has_relevant(self) -> bool:
        """Whether ranking metrics are defined: the question is answerable and has a relevant memory."""
        return self.answerable and bool(self.relevant.any() or self.missing)


def neutral_order(example: Example) -> list[int]:
    """Return the positions of the candidates, ordered by a hash of question and memory.

    Memories with the same id, text and dates are ordered by a hash of all their fields. The order of the file decides
    only between memories that are equal in everything.
    """

    def key(position: int) -> tuple[bytes, bytes, int]:
        memory = example.candidates[position].memory
        main_fields = f"{example.id}\0{memory.id}\0{memory.occurred_start}\0{memory.occurred_end}\0{memory.text}"
        all_fields = json.dumps(memory.to_dict(), sort_keys=True, default=str)
        return _digest(main_fields), _digest(f"{example.id}\0{all_fields}"), position

    return sorted(range(len(example.candidates)), key=key)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()


def measure(judgments: Sequence[Judgments], rankings: Sequence[Sequence[int]]) -> dict[str, Floats]:
    """Return each metric of each question; NaN for questions without relevant memories.

    :param rankings: positions of the candidates, best first.
    """
    ir = _ir_measures()
    result = {name: np.full(len(judgments), np.nan) for name in MEASURES}
    numbers = [number for number, question in enumerate(judgments) if question.has_relevant]
    if not numbers:
        return result
    run = [
        ir.ScoredDoc(str(number), str(position), float(len(rankings[number]) - rank))
        for number in numbers
        for rank, position in enumerate(rankings[number])
    ]
    binary = {ir.parse_measure(ir_name): name for name, ir_name in _IR_NAMES.items()}
    graded = {ir.parse_measure("nDCG@10"): "ndcg@10"}
    for names, is_graded in ((binary, False), (graded, True)):
        qrels = [qrel for number in numbers for qrel in _qrels(ir, number, judgments[number], is_graded)]
        for metric in ir.iter_calc(list(names), qrels, run):
            result[names[metric.measure]][int(metric.query_id)] = metric.value
    for values in result.values():
        values[numbers] = np.nan_to_num(values[numbers])  # a question with an empty pool has no entry and scores 0
    return result


def _qrels(ir: Any, number: int, judgments: Judgments, is_graded: bool) -> list[Any]:
    def grade(label: float, relevant: bool) -> int:
        return round(float(label) * _GRADES) if is_graded else int(relevant)

    grades = [(str(i), grade(label, judgments.relevant[i])) for i, label in enumerate(judgments.labels)]
    grades += [(f"missing {i}", grade(label, True)) for i, label in enumerate(judgments.missing)]
    return [ir.Qrel(str(number), name, value) for name, value in grades]


def pairwise_accuracy(judgments: Sequence[Judgments], rankings: Sequence[Sequence[int]]) -> Floats:
    """Return the share of each question's `pairs` that are in the right order; NaN without pairs."""
    result = np.full(len(judgments), np.nan)
    for number, (question, ranking) in enumerate(zip(judgments, rankings, strict=True)):
        if question.pairs:
            rank = {position: rank for rank, position in enumerate(ranking)}
            result[number] = np.mean([rank[higher] < rank[lower] for higher, lower in question.pairs])
    return result


def pool_recall(judgments: Sequence[Judgments]) -> float | None:
    """Return the share of relevant memories that are among the candidates: the ceiling of every recall."""
    shares = [
        question.relevant.sum() / (question.relevant.sum() + len(question.missing))
        for question in judgments
        if question.has_relevant
    ]
    return float(np.mean(shares)) if shares else None


@dataclass(frozen=True, slots=True)
class Bin:
    """A bin of a reliability diagram: mean predicted relevance and the share that is relevant."""

    predicted: float
    relevant: float
    count: int


def reliability(relevance: Floats, relevant: NDArray[np.bool_], bins: int = 10) -> list[Bin]:
    """Return the bins of a reliability diagram, of equal width over [0, 1], without empty ones."""
    bin_of = np.minimum((relevance * bins).astype(int), bins - 1)
    return [
        Bin(float(relevance[mask].mean()), float(relevant[mask].mean()), int(mask.sum()))
        for mask in (bin_of == index for index in range(bins))
        if mask.any()
    ]


def expected_calibration_error(curve: Sequence[Bin]) -> float | None:
    """Return the mean distance of predicted and actual relevance, weighted by count."""
    total = sum(b.count for b in curve)
    return sum(b.count * abs(b.predicted - b.relevant) for b in curve) / total if total else None


@dataclass(frozen=True, slots=True)
class Abstention:
    """How well a system recognizes questions that no memory answers.

    :param answerable_refused: the share of answerable questions on which it abstained; None if it never abstains.
    :param unanswerable_refused: the share of unanswerable questions on which it abstained.
    :param auc: the probability that the best memory of an answerable question scores above that of an unanswerable
        one; 0.5 is chance. Independent of the threshold.
    :param f1: the F1 of finding the unanswerable questions.
    """

    answerable_refused: float | None
    unanswerable_refused: float | None
    auc: float
    f1: float | None


def measure_abstention(
    answerable: Sequence[bool], best: Sequence[float], abstained: Sequence[bool] | None
) -> Abstention:
    """Measure abstention over questions of both kinds.

    :param best: the relevance, or score, of the best memory of each question.
    """
    is_answerable = np.asarray(answerable)
    high, low = np.asarray(best)[is_answerable], np.asarray(best)[~is_answerable]
    auc = (low[:, None] < high[None, :]).mean() + 0.5 * (low[:, None] == high[None, :]).mean()
    if abstained is None:
        return Abstention(None, None, float(auc), None)
    is_refused = np.asarray(abstained)
    correct = int((~is_answerable & is_refused).sum())
    total = int((~is_answerable).sum() + is_refused.sum())
    return Abstention(
        answerable_refused=float(is_refused[is_answerable].mean()),
        unanswerable_refused=float(is_refused[~is_answerable].mean()),
        auc=float(auc),
        f1=2 * correct / total if total else 0.0,
    )


def _ir_measures() -> Any:
    try:
        import ir_measures
    except ImportError as error:
        raise MissingExtraError(f"ranking metrics need `pip install 'mnemorank[eval]'` ({error})") from error
    return ir_measures
