"""The units of training and evaluation: a query with labeled candidate memories."""

from __future__ import annotations

from dataclasses import dataclass

from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.text.words import words


@dataclass(frozen=True, slots=True)
class Candidate:
    """A memory with its relevance label.

    :param label: relevance from 0 to 1.
    :param weight: the weight of the label in a loss; 0 for a candidate whose label is unknown.
    """

    memory: Memory
    label: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Example:
    """A query and its candidates.

    :param id: unique within a file.
    :param query_time: when the query was asked.
    :param group: what must stay on one side of a train/dev split, such as a persona or a conversation.
    :param source: the name of the data source, for reports.
    :param kind: the type of question, for reports by type.
    :param answerable: False when no candidate is relevant by design; used to measure abstention.
    :param missing: labels of relevant memories that are not among the candidates. They count in every metric.
    :param relevant_from: the lowest label that counts as relevant in binary metrics; 0 means any label above 0.
    :param pairs: positions of a relevant and an irrelevant candidate that a triplet compares.
    """

    id: str
    query: str
    candidates: tuple[Candidate, ...]
    query_time: Moment | None = None
    group: str | None = None
    source: str | None = None
    kind: str | None = None
    answerable: bool = True
    missing: tuple[float, ...] = ()
    relevant_from: float = 0.0
    pairs: tuple[tuple[int, int], ...] = ()

    @property
    def memories(self) -> list[Memory]:
        return [candidate.memory for candidate in self.candidates]

    @property
    def labels(self) -> list[float]:
        return [candidate.label for candidate in self.candidates]

    @property
    def split_key(self) -> str:
        """The group, or the normalized query if there is none: examples with the same key are never split."""
        return self.group or normalize_query(self.query)


@dataclass(frozen=True, slots=True)
class Triplet:
    """A query with one relevant and one irrelevant memory: the record of the Hindsight reranker."""

    query: str
    positive: Memory
    negative: Memory
    group: str | None = None
    kind: str | None = None


def normalize_query(query: str) -> str:
    """Return the words of a query without case and punctuation, so that spellings of one question compare equal."""
    return " ".join(words(query)) or query
