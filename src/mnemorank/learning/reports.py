"""What the log says beside training: memories shown often and never used, and queries that find nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from mnemorank.learning.events import RerankEvent
from mnemorank.learning.mining.evidence import query_key
from mnemorank.learning.signals import WHOLE_EVENT, Signal, merge

Log = Iterable[tuple[RerankEvent, Sequence[Signal]]]


@dataclass(frozen=True, slots=True)
class Unused:
    """A memory that was shown and that nobody ever clicked, cited, used or praised.

    :param disliked: how often it was voted down, contradicted or ignored.
    :param text: None where texts are not stored.
    """

    tenant: str
    memory_id: str | None
    text_hash: str
    shown: int
    mean_position: float
    disliked: int
    last_shown: float
    text: str | None = None


@dataclass(frozen=True, slots=True)
class NoHit:
    """A query that found nothing.

    :param abstained: how often the model itself said so.
    :param unhelpful: how often there was feedback, and none of it good.
    """

    tenant: str
    query: str
    asked: int
    abstained: int
    unhelpful: int


@dataclass(slots=True)
class _Tally:
    first: Unused
    positions: list[int] = field(default_factory=list)
    used: int = 0
    disliked: int = 0
    last: float = 0.0


def unused_memories(log: Log, least_shown: int = 10) -> list[Unused]:
    """Memories shown at least so often and never used, the most shown first."""
    tallies: dict[tuple[str, str], _Tally] = {}
    for event, signals in log:
        verdicts = merge(signals)
        liked = {verdict.position for verdict in verdicts if verdict.value > 0}
        disliked = {verdict.position for verdict in verdicts if verdict.value < 0}
        for shown in event.shown:
            text = shown.memory.text if shown.memory else None
            new = Unused(event.tenant, shown.memory_id, shown.text_hash, 0, 0.0, 0, 0.0, text)
            tally = tallies.setdefault((event.tenant, shown.memory_id or shown.identity), _Tally(new))
            tally.positions.append(shown.position)
            tally.used += shown.position in liked
            tally.disliked += shown.position in disliked
            tally.last = max(tally.last, event.time)
    found = [
        replace(
            tally.first,
            shown=len(tally.positions),
            mean_position=sum(tally.positions) / len(tally.positions),
            disliked=tally.disliked,
            last_shown=tally.last,
        )
        for tally in tallies.values()
        if not tally.used and len(tally.positions) >= least_shown
    ]
    return sorted(found, key=lambda entry: (-entry.shown, entry.mean_position, entry.text_hash))


def no_hits(log: Log, least_asked: int = 1) -> list[NoHit]:
    """Queries that never led to anything good though the model abstained or people said so, the most asked first."""
    tallies: dict[tuple[str, str], NoHit] = {}
    helped: set[tuple[str, str]] = set()
    for event, signals in log:
        if event.query is None:
            continue
        key = event.tenant, query_key(event.query)
        verdicts = merge(signals)
        on_whole = [signal for signal in signals if signal.position == WHOLE_EVENT]
        good = any(verdict.value > 0 for verdict in verdicts) or any(_praises(signal) for signal in on_whole)
        bad = bool(verdicts) or any(_blames(signal) for signal in on_whole)
        if good:
            helped.add(key)
        tally = tallies.setdefault(key, NoHit(event.tenant, event.query, 0, 0, 0))
        tallies[key] = replace(
            tally,
            asked=tally.asked + 1,
            abstained=tally.abstained + event.abstained,
            unhelpful=tally.unhelpful + (bad and not good),
        )
    found = [
        tally
        for key, tally in tallies.items()
        if key not in helped and (tally.abstained or tally.unhelpful) and tally.asked >= least_asked
    ]
    return sorted(found, key=lambda entry: (-entry.asked, entry.query))


def _praises(signal: Signal) -> bool:
    return signal.kind == "thumbs_up" or (signal.kind == "stars" and (signal.value or 0) > 3)


def _blames(signal: Signal) -> bool:
    return signal.kind == "thumbs_down" or (signal.kind == "stars" and (signal.value or 5) < 3)
