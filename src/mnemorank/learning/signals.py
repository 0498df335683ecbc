"""Signals: what people and agents say about an event, and how several signals make one verdict.

Rules, for one actor and one memory of one event:

1. A signal that is repeated counts once.
2. Explicit judgements (thumbs, stars, `contradicted`) outweigh behaviour (click, `cited`, `used`, `ignored`).
3. Of several explicit judgements the latest counts; of several behaviours the strongest.
4. Three stars, notes, and signals on the answer as a whole are no verdict on any memory.
5. A signal that comes too long after its event is kept for the record and does not count.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from mnemorank.errors import InputError

WHOLE_EVENT = -1
ANONYMOUS = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """:param value: +1 helps, -1 harms, 0 says neither (or depends on the stars).
    :param strength: how much one such signal counts; also the order among behaviours.
    :param explicit: a judgement, not a trace of behaviour.
    :param seen_in_order: given by a person who reads from the top, so subject to position bias.
    """

    name: str
    value: int
    strength: float
    explicit: bool
    seen_in_order: bool


KINDS = {
    kind.name: kind
    for kind in (
        Kind("thumbs_up", +1, 1.0, explicit=True, seen_in_order=True),
        Kind("thumbs_down", -1, 1.0, explicit=True, seen_in_order=True),
        Kind("stars", 0, 1.0, explicit=True, seen_in_order=True),
        Kind("contradicted", -1, 1.0, explicit=True, seen_in_order=False),
        Kind("cited", +1, 1.0, explicit=False, seen_in_order=False),
        Kind("used", +1, 0.7, explicit=False, seen_in_order=False),
        Kind("click", +1, 0.5, explicit=False, seen_in_order=True),
        Kind("ignored", -1, 0.3, explicit=False, seen_in_order=False),
        Kind("note", 0, 0.0, explicit=False, seen_in_order=False),
    )
}
# What says that a memory was wanted, and that what stands above it was seen and was not.
SHOWS_INTEREST = frozenset({"click", "cited"})


@dataclass(frozen=True, slots=True)
class Signal:
    """:param position: of the memory in what was shown; WHOLE_EVENT for the answer as a whole.
    :param actor: who says it; ANONYMOUS if unknown.
    :param late: it came after the store's limit; see rule 5.
    """

    event_id: str
    kind: str
    position: int = WHOLE_EVENT
    value: float | None = None
    note: str | None = None
    actor: str = ANONYMOUS
    time: float = field(default_factory=time.time)
    late: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"unknown signal {self.kind!r}; there are: {', '.join(sorted(KINDS))}", field="kind")
        if self.kind == "stars" and (self.value is None or not 1 <= self.value <= 5):
            raise InputError(f"expected 1 to 5 stars, got {self.value!r}", field="value")
        if self.kind == "note" and not (self.note or "").strip():
            raise InputError("is empty", field="note")
        if not math.isfinite(self.time):
            raise InputError(f"expected seconds since 1970, got {self.time!r}", field="time")
        if self.position < WHOLE_EVENT:
            raise InputError(f"expected a place from 0, got {self.position}", field="position")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one actor's signals on one memory come to.

    :param value: +1 or -1.
    """

    position: int
    actor: str
    value: int
    strength: float
    kind: str
    time: float


def merge(signals: Iterable[Signal]) -> list[Verdict]:
    """The verdicts of one event's signals, by the rules above; in order of position and actor."""
    by_target: dict[tuple[int, str], list[Signal]] = defaultdict(list)
    for signal in signals:
        if signal.position != WHOLE_EVENT and not signal.late:
            by_target[signal.position, signal.actor].append(signal)
    found = (_verdict(given) for _, given in sorted(by_target.items()))
    return [verdict for verdict in found if verdict is not None]


def _verdict(given: list[Signal]) -> Verdict | None:
    explicit = [signal for signal in given if KINDS[signal.kind].explicit]
    behaviour = [signal for signal in given if not KINDS[signal.kind].explicit and signal.kind != "note"]
    if explicit:
        # Of two given at the same instant the harm counts, so that the order of arrival does not matter.
        chosen = max(explicit, key=lambda signal: (signal.time, -_value(signal)))
    elif behaviour:
        chosen = max(behaviour, key=lambda signal: KINDS[signal.kind].strength)
    else:
        return None
    value = _value(chosen)
    if value == 0:
        return None
    kind = KINDS[chosen.kind]
    return Verdict(chosen.position, chosen.actor, value, kind.strength, kind.name, chosen.time)


def _value(signal: Signal) -> int:
    if signal.kind != "stars" or signal.value is None:
        return KINDS[signal.kind].value
    return (signal.value > 3) - (signal.value < 3)
