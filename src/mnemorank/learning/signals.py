"""Signals: feedback of people and agents on an event, and the rules that merge them into one verdict per memory.

For one actor and one memory of one event:

1. A repeated signal counts once.
2. Explicit judgments (thumbs, stars, `contradicted`) outweigh behavior (`click`, `cited`, `used`, `ignored`).
3. Of several explicit judgments the latest counts; of several behaviors the strongest.
4. Three stars, notes, and signals on the answer as a whole are not a verdict on any memory.
5. A signal that arrives too long after its event is stored, but does not count.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from mnemorank.errors import InputError

ANONYMOUS = ""


@dataclass(frozen=True, slots=True)
class SignalKind:
    """A kind of feedback.

    :param value: +1 positive, -1 negative, 0 neutral or dependent on the stars.
    :param strength: weight of one such signal; also the order among behaviors.
    :param is_explicit: a judgment rather than behavior.
    :param has_position_bias: given by a person who reads from the top.
    """

    name: str
    value: int
    strength: float
    is_explicit: bool
    has_position_bias: bool


KINDS = {
    kind.name: kind
    for kind in (
        SignalKind("thumbs_up", +1, 1.0, is_explicit=True, has_position_bias=True),
        SignalKind("thumbs_down", -1, 1.0, is_explicit=True, has_position_bias=True),
        SignalKind("stars", 0, 1.0, is_explicit=True, has_position_bias=True),
        SignalKind("contradicted", -1, 1.0, is_explicit=True, has_position_bias=False),
        SignalKind("cited", +1, 1.0, is_explicit=False, has_position_bias=False),
        SignalKind("used", +1, 0.7, is_explicit=False, has_position_bias=False),
        SignalKind("click", +1, 0.5, is_explicit=False, has_position_bias=True),
        SignalKind("ignored", -1, 0.3, is_explicit=False, has_position_bias=False),
        SignalKind("note", 0, 0.0, is_explicit=False, has_position_bias=False),
    )
}
# Kinds that show that a memory was wanted, and that the memories above it were seen and skipped.
SHOWS_INTEREST = frozenset({"click", "cited"})


@dataclass(frozen=True, slots=True)
class Signal:
    """Feedback on an event.

    :param kind: one of `KINDS`.
    :param rank: rank of the memory in the ranking, from 1; None for the answer as a whole.
    :param value: number of stars.
    :param actor: who gives it; ANONYMOUS if unknown.
    :param caller: name of the API key that reported it; empty without keys. It vouches for the actor.
    :param late: it arrived too late to count; the store sets it.
    """

    event_id: str
    kind: str
    rank: int | None = None
    value: float | None = None
    note: str | None = None
    actor: str = ANONYMOUS
    time: float = field(default_factory=time.time)
    late: bool = False
    caller: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown kind {self.kind!r}; expected one of {', '.join(sorted(KINDS))}", field="kind")
        if self.kind == "stars" and (self.value is None or not 1 <= self.value <= 5):
            raise InputError(f"expected 1 to 5 stars, got {self.value!r}", field="value")
        if self.kind == "note" and not (self.note or "").strip():
            raise InputError("is empty", field="note", code="empty")
        if not math.isfinite(self.time):
            raise InputError(f"expected seconds since 1970, got {self.time!r}", field="time")
        if self.rank is not None and self.rank < 1:
            raise InputError(f"expected a whole number from 1, got {self.rank}", field="rank")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one actor's signals on one memory.

    :param value: +1 or -1.
    """

    rank: int
    actor: str
    value: int
    strength: float
    kind: str
    time: float
    caller: str


def merge_signals(signals: Iterable[Signal]) -> list[Verdict]:
    """Merge the signals of one event by the rules above; ordered by rank and actor."""
    by_target: dict[tuple[int, str], list[Signal]] = defaultdict(list)
    for signal in signals:
        if signal.rank is not None and not signal.late:
            by_target[signal.rank, signal.actor].append(signal)
    verdicts = (_verdict(rank, group) for (rank, _), group in sorted(by_target.items()))
    return [verdict for verdict in verdicts if verdict is not None]


def _verdict(rank: int, signals: list[Signal]) -> Verdict | None:
    explicit = [signal for signal in signals if KINDS[signal.kind].is_explicit]
    behavior = [signal for signal in signals if not KINDS[signal.kind].is_explicit and signal.kind != "note"]
    if explicit:
        # Of two at the same instant the negative one counts, so that the order of arrival does not matter.
        chosen = max(explicit, key=lambda signal: (signal.time, -_value(signal)))
    elif behavior:
        chosen = max(behavior, key=lambda signal: KINDS[signal.kind].strength)
    else:
        return None
    value = _value(chosen)
    if value == 0:
        return None
    kind = KINDS[chosen.kind]
    return Verdict(rank, chosen.actor, value, kind.strength, kind.name, chosen.time, chosen.caller)


def _value(signal: Signal) -> int:
    if signal.kind != "stars" or signal.value is None:
        return KINDS[signal.kind].value
    return (signal.value > 3) - (signal.value < 3)
