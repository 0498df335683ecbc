"""What a rerank tells the feedback log: who asked, what was shown where, by which model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol
from uuid import uuid4

from mnemorank.memory.memory import Memory
from mnemorank.results import Ranking


@dataclass(frozen=True, slots=True)
class Shown:
    """A memory as it was shown.

    :param position: its place in the answer, from 0; `index` is its place in the request.
    :param text_hash: SHA-256 of the text; the text itself is for stores that may keep it.
    :param propensity: the chance that it stood at this position, below 1 where exploration swapped neighbours.
    :param memory: the whole record, dates and all, for stores that may keep texts.
    """

    memory_id: str | None
    index: int
    position: int
    relevance: float | None
    score: float | None
    raw_score: float | None
    first_stage_score: float | None
    text_hash: str
    text: str
    propensity: float = 1.0
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class RerankEvent:
    """One answered rerank of the native route.

    :param tenant: of the API key, else of the request.
    :param user: the end user, as the caller names them.
    :param model_version: `name@version+fingerprint` of the model that scored.
    :param test: test traffic, which learning leaves out.
    :param query_time: the request's `now`, ISO 8601.
    """

    id: str
    time: datetime
    tenant: str | None
    user: str | None
    query: str
    shown: tuple[Shown, ...]
    model_version: str
    abstained: bool = False
    degraded: str | None = None
    test: bool = False
    query_time: str | None = None


class EventLog(Protocol):
    """Where events go. `app.state.event_log` holds one, or None."""

    def record(self, event: RerankEvent) -> None:
        """Store the event durably. Called in a worker thread, before the answer is sent."""
        ...


def new_event_id() -> str:
    return uuid4().hex


def describe(
    ranking: Ranking,
    query: str,
    *,
    event_id: str,
    model_version: str,
    tenant: str | None = None,
    user: str | None = None,
    test: bool = False,
    query_time: str | None = None,
    propensities: Sequence[float] | None = None,
) -> RerankEvent:
    """The event of an answered rerank.

    :param propensities: by position, where exploration changed the order.
    """
    shown = tuple(
        Shown(
            memory_id=result.memory.id,
            index=result.index,
            position=position,
            relevance=result.relevance,
            score=result.score,
            raw_score=result.raw_score,
            first_stage_score=result.memory.first_stage_score,
            text_hash=hashlib.sha256(result.text.encode("utf-8", "surrogatepass")).hexdigest(),
            text=result.text,
            memory=result.memory,
            propensity=propensities[position] if propensities is not None else 1.0,
        )
        for position, result in enumerate(ranking)
    )
    return RerankEvent(
        id=event_id,
        time=datetime.now(UTC),
        tenant=tenant,
        user=user,
        query=query,
        shown=shown,
        model_version=model_version,
        abstained=ranking.abstained,
        degraded=ranking.degraded,
        test=test,
        query_time=query_time,
    )
