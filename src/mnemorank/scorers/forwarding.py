"""Bases for scorers that leave part of the work to what they hold."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from mnemorank.scorers.base import Pair, Passage, Scorer, Scores


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
    def score_pairs(self, pairs: Sequence[Pair], *, deadline: float | None = None) -> Scores:
        """One raw score a pair, in order, as `Scorer.score` gives it."""

    def score(
        self,
        query: str,
        passages: Sequence[Passage],
        *,
        instruction: str | None = None,
        deadline: float | None = None,
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
        deadline: float | None = None,
    ) -> Scores:
        return self.scorer.score(query, passages, instruction=instruction, deadline=deadline)

    def close(self) -> None:
        self.scorer.close()
