"""What is measured: anything that orders the candidates of a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mnemorank.evaluation.files import digest_of_code
from mnemorank.memory import Memory
from mnemorank.moment import Moment
from mnemorank.registry import Registry

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Question:
    """What a contestant sees of an example: no labels, and the memories in an order that says nothing.

    :param key: unique in the task, for seeded choices.
    """

    key: str
    query: str
    memories: Sequence[Memory]
    time: Moment | None = None

    @property
    def now(self) -> Moment:
        """Its own time; without one, the pool's newest date, so that the result does not change with the day."""
        dates = [memory.date for memory in self.memories if memory.date]
        return self.time or max(dates, key=lambda date: date.start, default=Moment(2000))


@dataclass(frozen=True, slots=True)
class Answer:
    """How a contestant ranks the memories of a question.

    :param scores: one a memory, higher is better; equal scores are ties.
    :param order: positions best first, where it is not simply that of the scores (the pipeline's stages reorder).
    :param relevance: probability that each memory is relevant, where the contestant gives one; NaN if not scored.
    :param abstained: the contestant says that nothing is relevant; None if it never says so.
    """

    scores: Floats
    order: Sequence[int] | None = None
    relevance: Floats | None = None
    abstained: bool | None = None

    def ranking(self) -> list[int]:
        """Positions best first. Ties keep the order of the question, which is drawn by hash: see `neutral_order`."""
        if self.order is not None:
            return list(self.order)
        return [int(i) for i in np.argsort(-self.scores, kind="stable")]


class Contestant(Protocol):
    """A model or baseline in a benchmark.

    :param fingerprint: names exactly what computes the scores, for the cache.
    """

    @property
    def name(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    def answer(self, question: Question) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Baseline:
    """A contestant that is a plain function.

    :param version: of what it uses beside this package's code: another library.
    """

    name: str
    description: str
    score: Callable[[Question], Floats]
    version: str = ""

    @property
    def fingerprint(self) -> str:
        return f"{self.name}-{self.version}-{digest_of_code()}"

    def answer(self, question: Question) -> Answer:
        return Answer(np.asarray(self.score(question), dtype=np.float64))


baselines: Registry[Baseline] = Registry("baseline")
