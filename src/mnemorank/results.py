"""What a rerank returns: results in order, each able to explain itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, overload

from mnemorank.memory.memory import Memory
from mnemorank.memory.records import as_mapping, as_pair

StaleReason = Literal["stated", "key", "similar"]


@dataclass(frozen=True, slots=True)
class Degradation:
    """Why the model did not score some or all of the pool.

    :param kind: `deadline` if time ran out, `model_failed` if the model raised an error, `incomplete` if it
        returned no score for some memories.
    """

    kind: Literal["deadline", "model_failed", "incomplete"]
    message: str

    def __str__(self) -> str:
        return self.message

    def to_dict(self) -> dict[str, str]:
        return {"kind": self.kind, "message": self.message}


@dataclass(frozen=True, slots=True)
class Result:
    """One ranked memory.

    :param index: its position in the pool.
    :param rank: its place in the ranking, from 1.
    :param relevance: the calibrated probability that it answers the query, by the model alone and so comparable across
        calls and pools; None if the model did not score it.
    :param score: the final ranking score, strictly decreasing along the ranking; None if the model did not score it.
    :param raw_score: the model's own score, before calibration.
    :param rank_change: places gained (positive) or lost against the first stage.
    :param stale: a newer memory of the pool replaces it.
    :param superseded_by: the index of that memory.
    :param stale_because: why it counts as replaced: one of the two says so (`stated`), they share a `key`, or their
        words are `similar`.
    :param passage: the part of a long memory that matched.
    :param factors: what the score was made of; filled with `explain=True`.
    :param record: the caller's own object at that position, untouched.
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
    stale_because: StaleReason | None = None
    record: Any = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        names = ("rank", "index", "id", "score", "relevance", "stale", "text")
        return f"Result({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

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
        """Return a dict of JSON values, as the server and `rerank --json` give it.

        :param texts: include the memory's text and the passage that matched.
        :param factors: include what the score was made of.
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
    """The model's judgment of one memory.

    :param relevance: the calibrated probability; like `raw_score` None for an empty text.
    """

    relevance: float | None
    raw_score: float | None


@dataclass(frozen=True, slots=True)
class Ranking(Sequence[Result]):
    """The results in order, best first.

    :param abstained: no memory is relevant enough to answer the query.
    :param degraded: why the model did not score some or all of the pool; None if it did.
    :param scored_by: the name of the model; None if the order is the first stage's.
    :param warnings: what was unusual about the input and how it was read.
    """

    results: tuple[Result, ...]
    abstained: bool = False
    degraded: Degradation | None = None
    scored_by: str | None = None
    warnings: tuple[str, ...] = ()
    records: tuple[Any, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if self.records:
            results = tuple(replace(result, record=self.records[result.index]) for result in self.results)
            object.__setattr__(self, "results", results)

    def __repr__(self) -> str:
        whole = {"abstained": self.abstained, "degraded": self.degraded, "warnings": self.warnings}
        lines = [repr(result) for result in self.results] + [f"{name}={value!r}" for name, value in whole.items()]
        return "Ranking(\n  " + ",\n  ".join(lines) + "\n)"

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
        """Return a dict of JSON values: the results, and what holds for the whole ranking."""
        return {
            "results": [result.to_dict(texts=texts, factors=factors) for result in self],
            "abstained": self.abstained,
            "degraded": None if self.degraded is None else self.degraded.to_dict(),
            "scored_by": self.scored_by,
            "warnings": list(self.warnings),
        }

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return copies of the caller's records in the new order, with `rank`, `score`, `relevance` and `stale` added.

        An existing `score` of a record moves to `first_stage_score`. Documents, rows and hits become dicts; the objects
        themselves are the results' `record`.
        """
        return [_with_result(_as_dict(self.records[result.index], result.memory), result) for result in self.results]


def _with_result(record: Mapping[str, Any], result: Result) -> dict[str, Any]:
    fields = dict(record)
    if "score" in fields:
        fields.setdefault("first_stage_score", fields["score"])
    added = {"rank": result.rank, "score": result.score, "relevance": result.relevance, "stale": result.stale}
    return {**fields, **added}


def _as_dict(record: Any, memory: Memory) -> Mapping[str, Any]:
    """Return a record as a mapping.

    :param memory: what was read from the record; used for objects whose text only the caller could locate.
    """
    if (pair := as_pair(record)) is not None:
        return {**_as_dict(pair[0], memory), "first_stage_score": pair[2]}
    if isinstance(record, Mapping):
        return record
    read = record if isinstance(record, Memory) else getattr(record, "memory", None)
    if isinstance(read, Memory):
        return read.to_dict()
    mapping = as_mapping(record)
    return mapping if mapping is not None and _has_text(mapping, memory.text) else memory.to_dict()


def _has_text(record: Mapping[str, Any], text: str) -> bool:
    return any(
        _has_text(v, text) if isinstance(v, Mapping) else isinstance(v, str) and v == text for v in record.values()
    )
