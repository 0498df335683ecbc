"""The protocol of ranking stages: functions from the state of a request to log-odds for each candidate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from mnemorank._internal.arrays import Floats
from mnemorank.errors import InputError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment, When
from mnemorank.memory.moment import now as current_moment
from mnemorank.model.model import Scored
from mnemorank.options import Options
from mnemorank.ranking.first_stage import FirstStageRanking, bm25_trust
from mnemorank.ranking.supersession import not_begun


@dataclass(frozen=True, slots=True)
class Times:
    """The dates of a request."""

    now: Moment
    as_of: Moment | None
    time_range: tuple[Moment, Moment] | None

    @classmethod
    def parse(cls, now: When | None, as_of: When | None, time_range: tuple[When, When] | None) -> Times:
        def parse(name: str, value: When) -> Moment:
            try:
                return Moment.parse(value)
            except InputError as error:
                raise InputError(error.message, field=name) from None

        period = None
        if time_range is not None:
            if not isinstance(time_range, Sequence) or isinstance(time_range, str) or len(time_range) != 2:
                raise InputError(f"expected two dates, got {time_range!r:.60}", field="time_range")
            period = parse("time_range", time_range[0]), parse("time_range", time_range[1])
            if period[1].is_before(period[0]):
                raise InputError(
                    f"expected the earlier date first, got {period[0]} and {period[1]}", field="time_range"
                )
        return cls(
            now=current_moment() if now is None else parse("now", now),
            as_of=None if as_of is None else parse("as_of", as_of),
            time_range=period,
        )


@dataclass(frozen=True)
class RankingContext:
    """The state of a request when its stages run.

    :param scored: the model's scores, in pool order.
    :param log_odds: log-odds of relevance so far, by the model and the first stage; NaN for unscored memories.
    :param rescore: scores further texts with the same model and query.
    :param warn: adds a warning to the ranking.
    """

    query: str
    pool: Sequence[Memory]
    options: Options
    times: Times
    first_stage: FirstStageRanking
    scored: Scored
    log_odds: Floats
    rescore: Callable[[Sequence[Memory]], Scored]
    warn: Callable[[str], None]

    def weight(self, name: str) -> float:
        """Return a pipeline weight: that of the options if set, else the model's."""
        override = self.options.weights.get(name)
        return float(getattr(self.scored.manifest.weights, name) if override is None else override)

    @cached_property
    def bm25_trust(self) -> float:
        """How far to trust word matches on this query, from 0 to 1."""
        return bm25_trust(self.query, self.scored.manifest.long_query_terms)

    @cached_property
    def future(self) -> frozenset[int]:
        """Positions of the memories that start after the request's `as_of`."""
        return not_begun(self.pool, self.times.as_of)

    @cached_property
    def candidates(self) -> list[int]:
        """Positions of the memories that stages consider: scored, and not in the future."""
        return [i for i, known in enumerate(np.isfinite(self.log_odds)) if known and i not in self.future]

    def passage(self, position: int) -> str:
        """Return the part of a memory that the model read: its best window, or the whole text."""
        return self.scored.passage(position, self.pool[position])


class Stage(Protocol):
    """Adds log-odds of relevance that no memory shows on its own. `name` is a field of `PipelineWeights`."""

    @property
    def name(self) -> str: ...

    def adjust(self, context: RankingContext) -> Floats:
        """Return the log-odds to add for each memory of the pool; 0 where the stage does not apply."""
        ...
