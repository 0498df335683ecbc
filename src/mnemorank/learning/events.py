"""Event: one rerank as it was shown, and what is remembered of it."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from mnemorank.errors import InputError
from mnemorank.learning.identity import named, told_apart
from mnemorank.memory.memory import Memory
from mnemorank.results import Ranking

DEFAULT_TENANT = "default"


def new_event_id() -> str:
    """Unique, and sorted by time."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Shown:
    """A memory that was shown.

    :param position: its place in what was shown, from 0.
    :param memory: None where its text was not allowed to be stored.
    :param text_hash: the store's keyed hash of the text; the store fills it in.
    :param propensity: with what probability the ranking policy puts it at this position; under 1 with exploration.
    """

    position: int
    memory: Memory | None
    memory_id: str | None = None
    text_hash: str = ""
    relevance: float | None = None
    raw_score: float | None = None
    propensity: float = 1.0

    @property
    def identity(self) -> str:
        """Tells it from others, those with the same words included: last year's lunch is not this year's.

        Where the memory is not stored, its id has to tell what else is known of it.
        """
        if self.memory is not None:
            return told_apart(self.text_hash, self.memory)
        return named(self.text_hash, self.memory_id) if self.memory_id else self.text_hash


@dataclass(frozen=True, slots=True)
class Event:
    """One rerank.

    :param query: None where queries are not allowed to be stored.
    :param query_time: the `now` of the request, as ISO 8601.
    :param user: whoever asked, by a name of the caller's own; None if unknown.
    :param model_version: of the model whose ranking was shown.
    :param test: test traffic, which is stored but never learnt from nor reported on.
    :param keep_texts: False forbids storing texts of this event even where the store allows it.
    """

    query: str | None
    shown: tuple[Shown, ...]
    model_version: str
    id: str = field(default_factory=new_event_id)
    time: float = field(default_factory=time.time)
    tenant: str = DEFAULT_TENANT
    user: str | None = None
    query_time: str | None = None
    abstained: bool = False
    test: bool = False
    keep_texts: bool = True

    def __post_init__(self) -> None:
        if not math.isfinite(self.time):
            raise InputError(f"expected seconds since 1970, got {self.time!r}", field="time")


def event_of(
    query: str,
    ranking: Ranking,
    model_version: str,
    *,
    tenant: str = DEFAULT_TENANT,
    user: str | None = None,
    query_time: str | None = None,
    test: bool = False,
    keep_texts: bool = True,
    propensities: Mapping[int, float] | None = None,
) -> Event:
    """The event of a ranking as `Reranker.rerank` returned it.

    :param propensities: by position, where exploration changed the order.
    """
    return Event(
        query=query,
        shown=tuple(
            Shown(
                position=position,
                memory=result.memory,
                memory_id=result.memory.id,
                relevance=result.relevance,
                raw_score=result.raw_score,
                propensity=(propensities or {}).get(position, 1.0),
            )
            for position, result in enumerate(ranking)
        ),
        model_version=model_version,
        tenant=tenant,
        user=user,
        query_time=query_time,
        abstained=ranking.abstained,
        test=test,
        keep_texts=keep_texts,
    )
