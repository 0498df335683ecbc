"""What every scorer does: texts in, one raw score each out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.deadline import Deadline

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Passage:
    """A text made ready for any query.

    :param length: its length in the scorer's tokens.
    :param ready: what the scorer computed ahead; only the scorer that made it reads it.
    """

    text: str
    length: int
    ready: Any = None


class Pair(NamedTuple):
    """A passage with the query it is scored for."""

    query: str
    passage: Passage
    instruction: str | None = None


class Batch(NamedTuple):
    """The size of a batch that was run: `padded` counts the tokens with the padding, `tokens` those without."""

    pairs: int
    tokens: int
    padded: int


class Scorer(Protocol):
    """A model that scores passages for a query. Safe to call from many threads at once."""

    name: str

    def prepare(self, texts: Sequence[str]) -> list[Passage]:
        """Do ahead of any query whatever does not depend on it (today: tokenizing)."""
        ...

    def room(self, query: str, instruction: str | None = None) -> int:
        """How many tokens of a passage fit beside this query."""
        ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """The character span of each token, for cutting windows."""
        ...

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scores:
        """One raw score a passage, in order; NaN for those not reached before the deadline.

        A score depends on its query and passage alone, never on the other passages.

        :param deadline: passages are then scored in the given order, in small batches.
        """
        ...

    def close(self) -> None:
        """Give back the model's memory. A closed scorer may not score."""
        ...


@runtime_checkable
class PairScorer(Protocol):
    """A scorer that can also run pairs of different queries in one batch, as a server does.

    :param on_batch: told of every batch that was run, if set.
    """

    token_budget: int
    on_batch: Callable[[Batch], None] | None

    def score_pairs(self, pairs: Sequence[Pair], *, deadline: Deadline | None = None) -> Scores:
        """One raw score a pair, in order, as `Scorer.score` gives it."""
        ...


class Tokenizes(Protocol):
    """What scorers and input writers both do with texts; see `Scorer`."""

    def prepare(self, texts: Sequence[str]) -> list[Passage]: ...

    def room(self, query: str, instruction: str | None = None) -> int: ...

    def offsets(self, text: str) -> list[tuple[int, int]]: ...


class TokenizingBase:
    """A scorer's dealings with texts, done by another: an input writer, or the scorer within."""

    def __init__(self, name: str, tokenizes: Tokenizes) -> None:
        self.name = name
        self._tokenizes = tokenizes

    def prepare(self, texts: Sequence[str]) -> list[Passage]:
        return self._tokenizes.prepare(texts)

    def room(self, query: str, instruction: str | None = None) -> int:
        return self._tokenizes.room(query, instruction)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return self._tokenizes.offsets(text)


class PairwiseBase(TokenizingBase, ABC):
    """A scorer that scores pairs, whether of one query or of many."""

    @abstractmethod
    def score_pairs(self, pairs: Sequence[Pair], *, deadline: Deadline | None = None) -> Scores:
        """One raw score a pair, in order, as `Scorer.score` gives it."""

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scores:
        return self.score_pairs([Pair(query, passage, instruction) for passage in passages], deadline=deadline)


class ForwardingScorer(TokenizingBase):
    """A scorer around another. By itself it changes nothing; a subclass overrides what it is there for.

    :param scorer: closed with this one.
    """

    def __init__(self, scorer: Scorer) -> None:
        super().__init__(scorer.name, scorer)
        self.scorer = scorer

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scores:
        return self.scorer.score(query, passages, instruction=instruction, deadline=deadline)

    def close(self) -> None:
        self.scorer.close()
