"""Estimate from the log how likely users were to examine each rank.

This is the position-based click model: a click needs an examination, which depends on the rank, and a relevant memory,
which does not. Where the same memory was shown at several ranks for the same query, because models change or
exploration swaps neighbors, expectation maximization separates the two. Other impressions say nothing about ranks and
are left out. With little evidence the estimate stays close to the prior, `rank ** -0.7`.

A skipped memory is only observed when something below it was clicked or cited, which is more likely near the top.
Without a correction, that alone would teach the model to reverse its own order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mnemorank._internal.arrays import Floats
from mnemorank.learning.events import SEPARATOR, RerankEvent
from mnemorank.learning.signals import SHOWS_INTEREST, Signal
from mnemorank.text.words import words

PRIOR_DECAY = 0.7
PRIOR_STRENGTH = 20.0
_MAX_RANK = 50  # lower ranks share one estimate

Log = Iterable[tuple[RerankEvent, Sequence[Signal]]]
"""Events with their signals, as `EventStore.events` returns them."""


@dataclass(frozen=True, slots=True)
class Impression:
    """A memory shown at a rank.

    :param key: the same for the same query and memory, whatever the rank.
    :param rank: from 1.
    """

    key: str
    rank: int
    clicked: bool


@dataclass(frozen=True, slots=True)
class Propensities:
    """How likely user behavior was to be observed at each rank.

    :param examined: probability that a rank was examined, relative to rank 1, which comes first; never increases.
    :param impressions: number of impressions behind the estimate; 0 for the prior.
    :param skip_observed: probability that skipping a memory at a rank would be observed; never increases.
    """

    examined: tuple[float, ...] = (1.0,)
    impressions: int = 0
    skip_observed: tuple[float, ...] = (1.0,)

    def examination(self, rank: int) -> float:
        """Return the probability that a rank was examined, relative to rank 1."""
        if rank <= len(self.examined):
            return self.examined[rank - 1]
        return min(self.examined[-1], prior(rank))

    def skip_observation(self, rank: int) -> float:
        """Return the probability that a skip at a rank was observed, relative to rank 1."""
        return self.skip_observed[min(rank, len(self.skip_observed)) - 1] / self.skip_observed[0]


def prior(rank: int) -> float:
    """Return the examination probability that is assumed without evidence."""
    return float(rank**-PRIOR_DECAY)


def read_impressions(log: Log) -> Iterator[Impression]:
    """Iterate over the impressions of a log, one per shown memory."""
    for event, signals in log:
        if event.query is None:
            continue
        clicked = {signal.rank for signal in signals if signal.kind == "click" and not signal.late}
        query = " ".join(words(event.query))
        for shown in event.shown:
            key = SEPARATOR.join((event.tenant, query, shown.identity))
            yield Impression(key, shown.rank, shown.rank in clicked)


def estimate_propensities(log: Log) -> Propensities:
    """Estimate propensities from a log, in one pass."""
    lowest: list[int] = []

    def collect_lowest() -> Iterator[tuple[RerankEvent, Sequence[Signal]]]:
        for event, signals in log:
            ranks = [s.rank for s in signals if s.kind in SHOWS_INTEREST and s.rank is not None and not s.late]
            if ranks:
                lowest.append(max(ranks))
            yield event, signals

    propensities = estimate_examination(read_impressions(collect_lowest()))
    return replace(propensities, skip_observed=_estimate_skip_observation(lowest))


def estimate_examination(impressions: Iterable[Impression], *, iterations: int = 200) -> Propensities:
    """Fit the examination probability of each rank to impressions."""
    informative = _shown_at_several_ranks(impressions)
    if not any(impression.clicked for impression in informative):
        return Propensities(tuple(prior(rank) for rank in range(1, 11)))
    number_by_key = {key: number for number, key in enumerate(dict.fromkeys(i.key for i in informative))}
    pair = np.array([number_by_key[i.key] for i in informative])
    index = np.array([min(i.rank, _MAX_RANK) - 1 for i in informative])
    clicked = np.array([i.clicked for i in informative], dtype=np.float64)
    expected = np.array([prior(rank) for rank in range(1, int(index.max()) + 2)])
    examined = _fit(pair, index, clicked, expected, iterations)
    decreasing = np.minimum.accumulate(np.clip(examined / examined[0], 1e-3, 1.0))
    return Propensities(tuple(float(value) for value in decreasing), len(informative))


def _estimate_skip_observation(lowest: Sequence[int]) -> tuple[float, ...]:
    """Estimate how likely a skip at each rank is observed.

    :param lowest: for each event with interest in some memory, the lowest rank of interest.
    """
    ranks = np.arange(1, min(max(lowest, default=1), _MAX_RANK) + 1)
    below = (np.array(lowest, dtype=np.int64)[None, :] > ranks[:, None]).sum(axis=1)
    expected = np.array([prior(int(rank) + 1) for rank in ranks])
    return tuple(float(x) for x in (below + PRIOR_STRENGTH * expected) / (len(lowest) + PRIOR_STRENGTH))


def _shown_at_several_ranks(impressions: Iterable[Impression]) -> list[Impression]:
    by_key: dict[str, list[Impression]] = defaultdict(list)
    for impression in impressions:
        by_key[impression.key].append(impression)
    return [
        impression
        for group in by_key.values()
        if len({min(i.rank, _MAX_RANK) for i in group}) > 1
        for impression in group
    ]


def _fit(
    pair: NDArray[np.int64], index: NDArray[np.int64], clicked: Floats, expected: Floats, iterations: int
) -> Floats:
    """Expectation maximization of the examination probability by rank, shrunk toward `expected`."""
    pair_count, rank_count = int(pair.max()) + 1, len(expected)
    per_pair, per_rank = np.bincount(pair, minlength=pair_count), np.bincount(index, minlength=rank_count)
    click_rate = clicked.mean()
    examined, relevant = expected.copy(), np.full(pair_count, min(2 * click_rate, 0.5))
    for _ in range(iterations):
        examination, relevance = examined[index], relevant[pair]
        no_click = np.maximum(1 - examination * relevance, 1e-9)
        was_examined = np.where(clicked > 0, 1.0, examination * (1 - relevance) / no_click)
        was_relevant = np.where(clicked > 0, 1.0, relevance * (1 - examination) / no_click)
        examined = (np.bincount(index, was_examined, rank_count) + PRIOR_STRENGTH * expected) / (
            per_rank + PRIOR_STRENGTH
        )
        relevant = (np.bincount(pair, was_relevant, pair_count) + click_rate) / (per_pair + 1)
    return examined
