"""How likely a memory at each position was looked at, estimated from the log.

The position-based click model: a click needs a look, which depends on the position, and a relevant memory, which does
not. Where the same memory was shown for the same query at different positions (models change, exploration swaps
neighbours) the two can be told apart; expectation maximisation does. All other impressions say nothing about
positions and are left out, and where few are left the prior 1/(position+1)^decay stands.

That a memory was passed over only shows where something below it was clicked or cited, which is likelier the higher it
stands. Left uncorrected, that alone would teach the model to turn its own order round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.arrays import Floats
from mnemorank.learning.events import RerankEvent
from mnemorank.learning.signals import SHOWS_INTEREST, Signal
from mnemorank.text.words import words

PRIOR_DECAY = 0.7
PRIOR_STRENGTH = 20.0


@dataclass(frozen=True, slots=True)
class Impression:
    """:param key: tells the query and memory, whatever the position."""

    key: str
    position: int
    clicked: bool


@dataclass(frozen=True, slots=True)
class Propensities:
    """:param looked: chance of a look by position, relative to the first; never rises further down.
    :param evidence: impressions that it rests on; 0 for the prior.
    :param passed: chance by position that it would show if the memory there was passed over; never rises further down.
    """

    looked: tuple[float, ...] = (1.0,)
    evidence: int = 0
    passed: tuple[float, ...] = (1.0,)

    def at(self, position: int) -> float:
        if position < len(self.looked):
            return self.looked[position]
        return min(self.looked[-1], prior(position))

    def passed_at(self, position: int) -> float:
        """Relative to the first position."""
        return self.passed[min(position, len(self.passed) - 1)] / self.passed[0]


def prior(position: int) -> float:
    return float((position + 1) ** -PRIOR_DECAY)


def impressions(log: Iterable[tuple[RerankEvent, Sequence[Signal]]]) -> Iterable[Impression]:
    """What the log says about clicks: one impression a memory shown."""
    for event, signals in log:
        if event.query is None:
            continue
        clicked = {signal.position for signal in signals if signal.kind == "click" and not signal.late}
        asked = " ".join(words(event.query))
        for shown in event.shown:
            key = f"{event.tenant}\x1f{asked}\x1f{shown.identity}"
            yield Impression(key, shown.position, shown.position in clicked)


def estimate(log: Iterable[tuple[RerankEvent, Sequence[Signal]]]) -> Propensities:
    """What the log says about positions."""
    lowest: list[int] = []

    def noted() -> Iterable[tuple[RerankEvent, Sequence[Signal]]]:
        for event, signals in log:
            wanted = [s.position for s in signals if s.kind in SHOWS_INTEREST and s.position >= 0 and not s.late]
            if wanted:
                lowest.append(max(wanted))
            yield event, signals

    found = looks(impressions(noted()))
    return replace(found, passed=_passed(lowest))


def _passed(lowest: Sequence[int], most_positions: int = 50) -> tuple[float, ...]:
    """:param lowest: of each event with interest in something, the lowest position of it."""
    places = np.arange(min(max(lowest, default=0) + 1, most_positions))
    below = (np.array(lowest, dtype=np.int64)[None, :] > places[:, None]).sum(axis=1)
    expected = np.array([prior(int(place) + 1) for place in places])
    return tuple(float(x) for x in (below + PRIOR_STRENGTH * expected) / (len(lowest) + PRIOR_STRENGTH))


def looks(seen: Iterable[Impression], *, most_positions: int = 50, rounds: int = 200) -> Propensities:
    """The chance of a look by position, fitted to impressions.

    :param most_positions: positions past this share the last one's estimate.
    """
    harvested = _shown_at_several_positions(seen, most_positions)
    if not any(impression.clicked for impression in harvested):
        return Propensities(tuple(prior(position) for position in range(10)))
    keys = {key: number for number, key in enumerate(dict.fromkeys(i.key for i in harvested))}
    pair = np.array([keys[i.key] for i in harvested])
    place = np.array([min(i.position, most_positions - 1) for i in harvested])
    clicked = np.array([i.clicked for i in harvested], dtype=np.float64)
    expected = np.array([prior(position) for position in range(int(place.max()) + 1)])
    looked = _fit(pair, place, clicked, expected, rounds)
    falling = np.minimum.accumulate(np.clip(looked / looked[0], 1e-3, 1.0))
    return Propensities(tuple(float(value) for value in falling), len(harvested))


def _shown_at_several_positions(seen: Iterable[Impression], most_positions: int) -> list[Impression]:
    by_key: dict[str, list[Impression]] = defaultdict(list)
    for impression in seen:
        by_key[impression.key].append(impression)
    return [
        impression
        for group in by_key.values()
        if len({min(i.position, most_positions - 1) for i in group}) > 1
        for impression in group
    ]


def _fit(pair: NDArray[np.int64], place: NDArray[np.int64], clicked: Floats, expected: Floats, rounds: int) -> Floats:
    """The chance of a look by position, on the scale of `expected`, to which each position is drawn a little."""
    pairs, places = int(pair.max()) + 1, len(expected)
    shows, looks = np.bincount(pair, minlength=pairs), np.bincount(place, minlength=places)
    overall = clicked.mean()
    looked, relevant = expected.copy(), np.full(pairs, min(2 * overall, 0.5))
    for _ in range(rounds):
        look, relevance = looked[place], relevant[pair]
        neither = np.maximum(1 - look * relevance, 1e-9)
        was_looked_at = np.where(clicked > 0, 1.0, look * (1 - relevance) / neither)
        was_relevant = np.where(clicked > 0, 1.0, relevance * (1 - look) / neither)
        looked = (np.bincount(place, was_looked_at, places) + PRIOR_STRENGTH * expected) / (looks + PRIOR_STRENGTH)
        relevant = (np.bincount(pair, was_relevant, pairs) + overall) / (shows + 1)
    return looked
