"""Rerank events: what was shown for a query, by which model. Needs no extra, so that the server can record them."""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.results import Ranking

DEFAULT_TENANT = "default"
SEPARATOR = "\x1f"


def new_event_id() -> str:
    """Return a unique id of 32 hexadecimal digits; ids sort by time."""
    return f"{time.time_ns() // 1_000_000:012x}{secrets.token_hex(10)}"


@dataclass(frozen=True, slots=True)
class ShownMemory:
    """A memory in a ranking that was shown.

    :param rank: place in the ranking, from 1.
    :param memory: None when the store may not keep texts.
    :param text_hash: keyed hash of the text; the store fills it in.
    :param propensity: probability that the ranking policy shows it at this rank; below 1 with exploration.
    :param index: place among the candidates of the request; not stored.
    """

    rank: int
    memory: Memory | None
    memory_id: str | None = None
    text_hash: str = ""
    relevance: float | None = None
    raw_score: float | None = None
    propensity: float = 1.0
    index: int | None = None

    @property
    def identity(self) -> str:
        """A key that distinguishes memories, including those with equal texts but different dates.

        Without a stored memory, its id stands for the fields that are unknown.
        """
        if self.memory is not None:
            return memory_identity(self.text_hash, self.memory)
        return scoped_name(self.text_hash, self.memory_id) if self.memory_id else self.text_hash


@dataclass(frozen=True, slots=True)
class RerankEvent:
    """One answered rerank.

    :param query: None when the store may not keep queries.
    :param model_version: version of the model whose ranking was shown.
    :param time: seconds since 1970.
    :param user: the end user, as the caller names them; None if unknown.
    :param query_time: the request's `now`, as ISO 8601.
    :param degraded: the model scored not all candidates; not stored.
    :param test: test traffic, which is stored but excluded from mining and reports.
    :param keep_texts: False keeps the texts of this event out of a store that otherwise keeps them.
    """

    query: str | None
    shown: tuple[ShownMemory, ...]
    model_version: str
    id: str = field(default_factory=new_event_id)
    time: float = field(default_factory=time.time)
    tenant: str = DEFAULT_TENANT
    user: str | None = None
    query_time: str | None = None
    abstained: bool = False
    degraded: bool = False
    test: bool = False
    keep_texts: bool = True

    def __post_init__(self) -> None:
        if not math.isfinite(self.time):
            raise InputError(f"expected seconds since 1970, got {self.time!r}", field="time")

    @classmethod
    def from_ranking(
        cls,
        query: str,
        ranking: Ranking,
        model_version: str,
        *,
        event_id: str | None = None,
        tenant: str | None = None,
        user: str | None = None,
        query_time: str | None = None,
        test: bool = False,
        keep_texts: bool = True,
        propensities: Sequence[float] | None = None,
    ) -> RerankEvent:
        """Create the event of a ranking that `Reranker.rerank` returned.

        :param event_id: a new id by default.
        :param propensities: one per result, when exploration changed the order.
        """
        return cls(
            query=query,
            shown=tuple(
                ShownMemory(
                    rank=rank,
                    memory=result.memory,
                    memory_id=result.memory.id,
                    relevance=result.relevance,
                    raw_score=result.raw_score,
                    propensity=1.0 if propensities is None else propensities[rank - 1],
                    index=result.index,
                )
                for rank, result in enumerate(ranking, 1)
            ),
            model_version=model_version,
            id=event_id or new_event_id(),
            tenant=tenant or DEFAULT_TENANT,
            user=user,
            query_time=query_time,
            abstained=ranking.abstained,
            degraded=ranking.degraded is not None,
            test=test,
            keep_texts=keep_texts,
        )


def memory_identity(text: str, memory: Memory) -> str:
    """Return a key made of a memory's text and of the other fields that the model reads.

    :param text: the memory's text, or a hash of it; plain texts have no other key.
    """
    fields = (
        memory.context, memory.occurred_start, memory.occurred_end, memory.mentioned_at, memory.speaker, memory.type,
    )  # fmt: skip
    if not any(fields):
        return text
    return SEPARATOR.join([text, *("" if value is None else str(value) for value in fields)])


def text_hash_of(identity: str) -> str:
    """Return the text hash in a `ShownMemory.identity`."""
    return identity.partition(SEPARATOR)[0]


def scoped_name(tenant: str, name: str) -> str:
    """Return the name of a user or memory, made unique across tenants."""
    return tenant + SEPARATOR + name


def digest(*parts: str) -> str:
    """Return a short hash that is the same in every process and store."""
    return hashlib.blake2b(SEPARATOR.join(parts).encode("utf-8", "replace"), digest_size=10).hexdigest()
