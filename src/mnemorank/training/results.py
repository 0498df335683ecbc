"""What training gained: base against trained on the dev examples, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mnemorank.evaluation.significance import Comparison, Interval, compare, interval
from mnemorank.manifest import Calibration
from mnemorank.ranking.calibrate import fit_platt
from mnemorank.training.measuring import Floats, Measured

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
