"""Ranking measures through ir-measures (pytrec-eval-terrier), calibration and abstention.

The tie rule, one for all contestants and measures: equal scores stand in the order that `neutral_order` draws from a
hash of question and memory. It knows neither labels nor the order of the file, so that a tie favours nobody. What
reaches ir-measures are ranks, so that its own rule for ties never applies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
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
class Judged:
    """The labels of one question.

    :param relevant: which candidates count as relevant in binary measures.
    :param missing: labels of the relevant memories that are not among the candidates; they count in every measure.
    """

    labels: Floats
    relevant: NDArray[np.bool_]
    missing: Sequence[float] = ()
    answerable: bool = True
    pairs: Sequence[tuple[int, int]] = ()

    @classmethod
    def of(cls, example: Example) -> Judged:
        labels = np.array(example.labels, dtype=np.float64)
        relevant = labels >= example.relevant_from if example.relevant_from > 0 else labels > 0
        return cls(labels, relevant, example.missing, example.answerable, example.pairs)

    @property
    def is_ranked(self) -> bool:
        """Whether ranking measures make sense: something relevant exists."""
        return self.answerable and bool(self.relevant.any() or self.missing)


def neutral_order(example: Example) -> list[int]:
    """Positions of the candidates in an order drawn by hash of question and memory, the same on every run.

    Memories of one id, text and span are told apart by whatever else they have: their place in the file decides only
    between memories that are the same in everything.
    """

    def draw(position: int) -> tuple[bytes, bytes, int]:
        memory = example.candidates[position].memory
        own = f"{example.id}\0{memory.id}\0{memory.occurred_start}\0{memory.occurred_end}\0{memory.text}"
        whole = json.dumps(memory.to_dict(), sort_keys=True, default=str)
        return _digest(own), _digest(f"{example.id}\0{whole}"), position

    return sorted(range(len(example.candidates)), key=draw)


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()


def measure(judged: Sequence[Judged], rankings: Sequence[Sequence[int]]) -> dict[str, Floats]:
    """Each measure of each question; NaN for questions without anything relevant.

    :param rankings: positions of the candidates, best first.
    """
    ir = _ir_measures()
    result = {name: np.full(len(judged), np.nan) for name in MEASURES}
    ranked = [number for number, one in enumerate(judged) if one.is_ranked]
    if not ranked:
        return result
    run = [
        ir.ScoredDoc(str(number), str(position), float(len(rankings[number]) - place))
        for number in ranked
        for place, position in enumerate(rankings[number])
    ]
    binary = {ir.parse_measure(ir_name): name for name, ir_name in _IR_NAMES.items()}
    gains = {ir.parse_measure("nDCG@10"): "ndcg@10"}
    for names, graded in ((binary, False), (gains, True)):
        qrels = [qrel for number in ranked for qrel in _qrels(ir, number, judged[number], graded)]
        for metric in ir.iter_calc(list(names), qrels, run):
            result[names[metric.measure]][int(metric.query_id)] = metric.value
    for values in result.values():
        values[ranked] = np.nan_to_num(values[ranked])  # a question with an empty pool has no entry: it scores 0
    return result


def _qrels(ir: Any, number: int, one: Judged, graded: bool) -> list[Any]:
    def grade(label: float, relevant: bool) -> int:
        return round(float(label) * _GRADES) if graded else int(relevant)

    found = [(str(i), grade(label, one.relevant[i])) for i, label in enumerate(one.labels)]
    found += [(f"missing {i}", grade(label, True)) for i, label in enumerate(one.missing)]
    return [ir.Qrel(str(number), name, value) for name, value in found]


def pairwise_accuracy(judged: Sequence[Judged], rankings: Sequence[Sequence[int]]) -> Floats:
    """Of the pairs that a question's triplets set against each other, the share in the right order; NaN without."""
    result = np.full(len(judged), np.nan)
    for number, (one, ranking) in enumerate(zip(judged, rankings, strict=True)):
        if one.pairs:
            place = {position: rank for rank, position in enumerate(ranking)}
            result[number] = np.mean([place[right] < place[wrong] for right, wrong in one.pairs])
    return result


def pool_recall(judged: Sequence[Judged]) -> float | None:
    """Share of the relevant memories that are among the candidates at all: the ceiling of every recall."""
    shares = [one.relevant.sum() / (one.relevant.sum() + len(one.missing)) for one in judged if one.is_ranked]
    return float(np.mean(shares)) if shares else None


@dataclass(frozen=True, slots=True)
class Bin:
    """One bar of the reliability diagram: what was predicted on average, and how much of it was relevant."""

    predicted: float
    relevant: float
    count: int


def reliability(relevance: Floats, relevant: NDArray[np.bool_], bins: int = 10) -> list[Bin]:
    """Bins of equal width over [0, 1]; empty ones are left out."""
    place = np.minimum((relevance * bins).astype(int), bins - 1)
    return [
        Bin(float(relevance[mine].mean()), float(relevant[mine].mean()), int(mine.sum()))
        for mine in (place == b for b in range(bins))
        if mine.any()
    ]


def expected_calibration_error(curve: Sequence[Bin]) -> float | None:
    """Mean distance of predicted and found, weighted by count."""
    total = sum(b.count for b in curve)
    return sum(b.count * abs(b.predicted - b.relevant) for b in curve) / total if total else None


def abstention(answerable: Sequence[bool], abstained: Sequence[bool], best: Sequence[float]) -> Mapping[str, float]:
    """How well "nothing here is relevant" is said: F1 of finding the unanswerable questions, and the area under the
    ROC curve of the best relevance (0.5 is chance, whatever the threshold).
    """
    unanswerable = ~np.asarray(answerable)
    said = np.asarray(abstained)
    right = int((unanswerable & said).sum())
    total = int(unanswerable.sum() + said.sum())
    low, high = np.asarray(best)[unanswerable], np.asarray(best)[~unanswerable]
    below = (low[:, None] < high[None, :]).mean() + 0.5 * (low[:, None] == high[None, :]).mean()
    return {"abstention_f1": 2 * right / total if total else 0.0, "abstention_auc": float(below)}


def _ir_measures() -> Any:
    try:
        import ir_measures
    except ImportError as error:
        raise MissingExtraError(f"bench: needs `pip install 'mnemorank[eval]'` ({error})") from error
    return ir_measures
