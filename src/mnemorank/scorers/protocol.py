"""What a scorer is: a query and passages in, one raw score per passage out."""

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
    """A text prepared for scoring with any query.

    :param length: in tokens of the scorer.
    :param encoded: the scorer's own encoding of the text, such as token ids.
    """

    text: str
    length: int
    encoded: Any = None


class Pair(NamedTuple):
    """A passage and the query it is scored for."""

    query: str
    passage: Passage
    instruction: str | None = None


class Batch(NamedTuple):
    """The size of a batch: `padded` counts its tokens with padding, `tokens` without."""

    pairs: int
    tokens: int
    padded: int


class PassageTokenizer(Protocol):
    """The part of a scorer that deals with text."""

    def prepare(self, texts: Sequence[str]) -> list[Passage]:
        """Tokenize texts, once for all queries."""
        ...

    def room(self, query: str, instruction: str | None = None) -> int:
        """Return how many tokens of a passage fit next to the query; raise QueryTooLongError if too few do."""
        ...

    def offsets(self, text: str) -> list[tuple[int, int]]:
        """Return the character span of each token."""
        ...


class Scorer(PassageTokenizer, Protocol):
    """A model that scores passages for a query. Safe to call from many threads at once."""

    name: str

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scores:
        """Return one raw score per passage, in order; NaN for passages not reached before the deadline.

        A score depends on its query and passage alone, never on the other passages.

        :param deadline: if given, passages are scored in the given order and in small batches.
        """
        ...

    def close(self) -> None:
        """Release the model's memory. A closed scorer raises ScorerError when called."""
        ...


@runtime_checkable
class PairScorer(Protocol):
    """A scorer that can mix pairs of different queries in a batch, as a server does.

    :param on_batch: called after every batch, if set.
    """

    token_budget: int
    on_batch: Callable[[Batch], None] | None

    def score_pairs(self, pairs: Sequence[Pair], *, deadline: Deadline | None = None) -> Scores:
        """Return one raw score per pair, as `Scorer.score` does."""
        ...


@runtime_checkable
class MemoryJudge(Protocol):
    """A scorer that also judges memories and queries by themselves.

    :param width: of an embedding.
    :param max_memory: the longest passage in tokens.
    """

    width: int
    max_memory: int

    def prepare(self, texts: Sequence[str]) -> list[Passage]: ...

    def embed(self, passages: Sequence[Passage]) -> NDArray[np.float32]:
        """Return the embedding of each passage, of length 1."""
        ...

    def replacement(self, pairs: Sequence[tuple[Passage, Passage]]) -> Scores:
        """Return, for pairs of an older and a newer memory, the log-odds that the newer replaces the older."""
        ...

    def asks_about_past(self, query: str) -> float:
        """Return the log-odds that a query asks for an earlier state ("where did she work before?")."""
        ...


class TokenizingScorer:
    """Base of scorers that leave the text to another object: an input writer, or a wrapped scorer."""

    def __init__(self, name: str, tokenizer: PassageTokenizer) -> None:
        self.name = name
        self._tokenizer = tokenizer

    def prepare(self, texts: Sequence[str]) -> list[Passage]:
        return self._tokenizer.prepare(texts)

    def room(self, query: str, instruction: str | None = None) -> int:
        return self._tokenizer.room(query, instruction)

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return self._tokenizer.offsets(text)


class BasePairScorer(TokenizingScorer, ABC):
    """Base of scorers that score pairs, of one query or of many."""

    @abstractmethod
    def score_pairs(self, pairs: Sequence[Pair], *, deadline: Deadline | None = None) -> Scores:
        """Return one raw score per pair, as `Scorer.score` does."""

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scores:
        return self.score_pairs([Pair(query, passage, instruction) for passage in passages], deadline=deadline)


class ForwardingScorer(TokenizingScorer):
    """A scorer that wraps another one and forwards every call; subclasses override what they change.

    :param scorer: closed together with this one.
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
