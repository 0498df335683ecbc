"""What a benchmark gives to a system, what the system returns, and the protocol of a system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment


@dataclass(frozen=True, slots=True)
class Question:
    """What a system sees of an example: no labels, and the memories in an order that reveals nothing.

    :param key: unique within the task; the seed of random choices.
    """

    key: str
    query: str
    memories: Sequence[Memory]
    time: Moment | None = None

    @property
    def now(self) -> Moment:
        """Its own time, or else the newest date of the pool, so that results do not depend on the current day."""
        dates = [memory.date for memory in self.memories if memory.date]
        return self.time or max(dates, key=lambda date: date.start, default=Moment(2000))


@dataclass(frozen=True, slots=True)
class Prediction:
    """A system's ranking of the memories of a question.

    :param scores: one per memory, higher is better; NaN if not scored.
    :param order: positions, best first; by default that of the scores, where ties keep the order of the question.
    :param relevance: the probability that each memory is relevant, if the system gives one; NaN if not scored.
    :param abstained: whether the system says that no memory is relevant; None if it never does.
    :param seconds: the time it took.
    """

    scores: Floats
    order: Sequence[int] | None = None
    relevance: Floats | None = None
    abstained: bool | None = None
    seconds: float = 0.0

    @property
    def ranking(self) -> tuple[int, ...]:
        """The positions of all memories, best first."""
        if self.order is not None:
            return tuple(self.order)
        return tuple(int(i) for i in np.argsort(-self.scores, kind="stable"))

    def in_file_order(self, positions: Sequence[int]) -> Prediction:
        """Return the prediction for the candidates in their original order.

        :param positions: the original position of each memory of the question.
        """
        original = np.argsort(positions)
        return replace(
            self,
            scores=self.scores[original],
            order=tuple(positions[i] for i in self.ranking),
            relevance=None if self.relevance is None else self.relevance[original],
        )

    def to_record(self) -> dict[str, Any]:
        """Return a dict of JSON values; `from_record` reads it back."""
        return {
            "ranking": list(self.ranking),
            "scores": _numbers(self.scores),
            "relevance": None if self.relevance is None else _numbers(self.relevance),
            "abstained": self.abstained,
            "seconds": round(self.seconds, 6),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Prediction:
        relevance = record["relevance"]
        return cls(
            scores=np.array(record["scores"], dtype=np.float64),
            order=tuple(record["ranking"]),
            relevance=None if relevance is None else np.array(relevance, dtype=np.float64),
            abstained=record["abstained"],
            seconds=float(record["seconds"]),
        )


class System(Protocol):
    """A model or baseline under evaluation."""

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Identifies exactly what computes the scores, for the result cache; empty to never cache."""
        ...

    def rank(self, question: Question) -> Prediction: ...


def _numbers(values: Floats) -> list[float | None]:
    return [round(float(value), 7) if np.isfinite(value) else None for value in values]
