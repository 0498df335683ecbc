"""What comes out of a rerank: results in order, each able to explain itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

from mnemorank.memory.memory import Memory
from mnemorank.memory.records import as_mapping, as_pair
from mnemorank.ranking.supersession import Reason


@dataclass(frozen=True, slots=True)
class Result:
    """One ranked memory.

    :param index: its position in the pool that was given.
    :param rank: its place in the ranking, from 0.
    :param relevance: calibrated probability that it answers the query; None if the model did not score it.
    :param score: what it was ranked by: the relevance with all factors; None if the model did not score it.
    :param raw_score: the model's own score, before calibration.
    :param rank_change: places gained (positive) or lost against the first stage.
    :param stale: a newer memory of the pool replaced it.
    :param superseded_by: index of that memory.
    :param stale_because: how that is known: `stated` by one of them, by a common `key`, or their words are `alike`.
    :param passage: of a long memory, the part that matched.
    :param factors: what the score was made of; filled with `explain=True`.
    :param record: what was handed in at that position: the caller's own object, untouched.
    """

    index: int
    memory: Memory
    rank: int
    relevance: float | None
    score: float | None
    raw_score: float | None
    rank_change: int
    stale: bool = False
    superseded_by: int | None = None
    passage: str | None = None
    factors: Mapping[str, float] = field(default_factory=dict)
    stale_because: Reason | None = None
    record: Any = field(default=None, repr=False, compare=False)

    @property
    def id(self) -> str | None:
        return self.memory.id

    @property
    def text(self) -> str:
        return self.memory.text

    @property
    def scored(self) -> bool:
        return self.relevance is not None

    def to_dict(self, *, texts: bool = True, factors: bool = True) -> dict[str, Any]:
        """A record of JSON values, as the server and `rerank --json` give it.

        :param texts: with the memory's text and the passage that matched.
        :param factors: with what the score was made of.
        """
        record: dict[str, Any] = {
            "index": self.index,
            "id": self.id,
            "rank": self.rank,
            "relevance": self.relevance,
            "score": self.score,
            "raw_score": self.raw_score,
            "rank_change": self.rank_change,
            "stale": self.stale,
            "superseded_by": self.superseded_by,
            "stale_because": self.stale_because,
        }
        if texts:
            record.update(text=self.text, passage=self.passage)
        if factors:
            record["factors"] = dict(self.factors)
        return record


@dataclass(frozen=True, slots=True)
class Score:
    """:param relevance: calibrated probability; both are None for an empty text."""

    relevance: float | None
    raw_score: float | None


@dataclass(frozen=True, slots=True)
class Ranking(Sequence[Result]):
    """The results in order, best first.

    :param abstained: nothing in the pool is relevant: the best relevance is under the threshold.
    :param degraded: why the model did not score some or all of the pool (failure, deadline); None if all went well.
    :param scored_by: the model that scored; None if none did and the order is the first stage's.
    :param warnings: what was odd about the input and how it was read.
    """

    results: tuple[Result, ...]
    abstained: bool = False
    degraded: str | None = None
    scored_by: str | None = None
    warnings: tuple[str, ...] = ()
    records: tuple[Any, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.records:
            results = tuple(replace(result, record=self.records[result.index]) for result in self.results)
            object.__setattr__(self, "results", results)

    @overload
    def __getitem__(self, index: int) -> Result: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Result, ...]: ...
    def __getitem__(self, index: int | slice) -> Result | tuple[Result, ...]:
        return self.results[index]

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def to_dict(self, *, texts: bool = True, factors: bool = True) -> dict[str, Any]:
        """A record of JSON values: all results with their scores and flags, and what is said of the whole."""
        return {
            "results": [result.to_dict(texts=texts, factors=factors) for result in self],
            "abstained": self.abstained,
            "degraded": self.degraded,
            "scored_by": self.scored_by,
            "warnings": list(self.warnings),
        }

    def as_dicts(self) -> list[dict[str, Any]]:
        """The caller's own records in the new order: copies with `rerank_score` added; None where not scored.

        A document, a row or a hit is given as a dict; the object itself is the result's `record`.
        """
        return [
            {**_as_dict(self.records[result.index], result.memory), "rerank_score": result.score}
            for result in self.results
        ]


def _as_dict(record: Any, memory: Memory) -> Mapping[str, Any]:
    """:param memory: as it was read of the record; stands for an object whose text only the caller could find."""
    if (pair := as_pair(record)) is not None:
        return {**_as_dict(pair[0], memory), "first_stage_score": pair[2]}
    if isinstance(record, Mapping):
        return record
    made = record if isinstance(record, Memory) else getattr(record, "memory", None)
    if isinstance(made, Memory):
        return made.to_dict()
    found = as_mapping(record)
    return found if found is not None and _holds(found, memory.text) else memory.to_dict()


def _holds(record: Mapping[str, Any], text: str) -> bool:
    return any(_holds(v, text) if isinstance(v, Mapping) else isinstance(v, str) and v == text for v in record.values())
