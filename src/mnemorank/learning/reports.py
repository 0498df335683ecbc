"""Reports from the log: memories that are often shown and never used, and queries without a useful result."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from mnemorank.learning.mining.propensity import Log
from mnemorank.learning.mining.votes import query_key
from mnemorank.learning.signals import Signal, merge_signals


@dataclass(frozen=True, slots=True)
class UnusedMemory:
    """A memory that nobody ever clicked, cited, used or rated positively.

    :param shown: how often it was shown.
    :param negative: how often it was rated negatively, contradicted or ignored.
    :param text: None if the store keeps no texts.
    """

    tenant: str
    memory_id: str | None
    text_hash: str
    shown: int
    mean_rank: float
    negative: int
    last_shown: float
    text: str | None = None


@dataclass(frozen=True, slots=True)
class UnansweredQuery:
    """A query without a useful result.

    :param asked: how often it was asked.
    :param abstained: how often the model abstained.
    :param unhelpful: how often there was feedback, and none of it positive.
    """

    tenant: str
    query: str
    asked: int
    abstained: int
    unhelpful: int


@dataclass(frozen=True, slots=True)
class DayReport:
    """What happened on a day, in UTC.

    :param signals: number of signals by kind.
    """

    day: str
    events: int
    abstained: int
    signals: Mapping[str, int]


@dataclass(slots=True)
class _MemoryTally:
    memory_id: str | None
    text_hash: str
    text: str | None
    ranks: list[int] = field(default_factory=list)
    positive: int = 0
    negative: int = 0
    last_shown: float = 0.0


@dataclass(slots=True)
class _QueryTally:
    query: str
    asked: int = 0
    abstained: int = 0
    unhelpful: int = 0
    is_answered: bool = False


def unused_memories(log: Log, min_shown: int = 10) -> list[UnusedMemory]:
    """Return the memories that were shown at least `min_shown` times and never used, most shown first."""
    tallies: dict[tuple[str, str], _MemoryTally] = {}
    for event, signals in log:
        verdicts = merge_signals(signals)
        positive = {verdict.rank for verdict in verdicts if verdict.value > 0}
        negative = {verdict.rank for verdict in verdicts if verdict.value < 0}
        for shown in event.shown:
            key = event.tenant, shown.memory_id or shown.identity
            if key not in tallies:
                text = shown.memory.text if shown.memory else None
                tallies[key] = _MemoryTally(shown.memory_id, shown.text_hash, text)
            tally = tallies[key]
            tally.ranks.append(shown.rank)
            tally.positive += shown.rank in positive
            tally.negative += shown.rank in negative
            tally.last_shown = max(tally.last_shown, event.time)
    unused = [
        UnusedMemory(
            tenant=tenant,
            memory_id=tally.memory_id,
            text_hash=tally.text_hash,
            shown=len(tally.ranks),
            mean_rank=sum(tally.ranks) / len(tally.ranks),
            negative=tally.negative,
            last_shown=tally.last_shown,
            text=tally.text,
        )
        for (tenant, _), tally in tallies.items()
        if not tally.positive and len(tally.ranks) >= min_shown
    ]
    return sorted(unused, key=lambda memory: (-memory.shown, memory.mean_rank, memory.text_hash))


def unanswered_queries(log: Log, min_asked: int = 1) -> list[UnansweredQuery]:
    """Return the queries on which the model abstained or users complained, and that never had a useful result.

    Most asked first.
    """
    tallies: dict[tuple[str, str], _QueryTally] = {}
    for event, signals in log:
        if event.query is None:
            continue
        verdicts = merge_signals(signals)
        on_answer = [signal for signal in signals if signal.rank is None]
        is_helpful = any(verdict.value > 0 for verdict in verdicts) or any(map(_is_positive, on_answer))
        has_feedback = bool(verdicts) or any(map(_is_negative, on_answer))
        tally = tallies.setdefault((event.tenant, query_key(event.query)), _QueryTally(event.query))
        tally.asked += 1
        tally.abstained += event.abstained
        tally.unhelpful += has_feedback and not is_helpful
        tally.is_answered |= is_helpful
    unanswered = [
        UnansweredQuery(tenant, tally.query, tally.asked, tally.abstained, tally.unhelpful)
        for (tenant, _), tally in tallies.items()
        if not tally.is_answered and (tally.abstained or tally.unhelpful) and tally.asked >= min_asked
    ]
    return sorted(unanswered, key=lambda query: (-query.asked, query.query))


def daily_feedback(log: Log) -> list[DayReport]:
    """Count events, and the signals on them, by the day of the event; oldest first, without days of no event."""
    days: dict[str, tuple[list[bool], Counter[str]]] = {}
    for event, signals in log:
        day = datetime.fromtimestamp(event.time, UTC).date().isoformat()
        abstained, kinds = days.setdefault(day, ([], Counter()))
        abstained.append(event.abstained)
        kinds.update(signal.kind for signal in signals)
    return [
        DayReport(day, len(abstained), sum(abstained), dict(kinds)) for day, (abstained, kinds) in sorted(days.items())
    ]


def _is_positive(signal: Signal) -> bool:
    return signal.kind == "thumbs_up" or (signal.kind == "stars" and (signal.value or 0) > 3)


def _is_negative(signal: Signal) -> bool:
    return signal.kind == "thumbs_down" or (signal.kind == "stars" and (signal.value or 5) < 3)
