"""Admission: refuse a request at once if the work already accepted leaves it too little time.

A queue that only counts pairs accepts requests that cannot be answered in time. Under overload they use up the time of
the others until nothing is answered in time. So the queue estimates when each request would be done: work is measured
in characters to score, and the speed in characters per second while anything is being ranked, reading included.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.manifest import Manifest
from mnemorank.server.errors import OverloadedError

# A request must be able to finish in this share of its time: estimates are rough, and others arrive later.
_SHARE_OF_TIME = 0.8
# Of a request that could not finish in time even alone, this share of what is possible. The native route returns
# whatever is scored by the deadline.
_SHARE_OF_POSSIBLE = 0.5
# Recent seconds that determine the speed.
_SPEED_WINDOW = 10.0
_CHARACTERS_PER_TOKEN = 4
_MAX_RETRY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Work:
    """The size of a request.

    :param pairs: of a query and a document.
    :param characters: to score.
    """

    pairs: int
    characters: float

    @classmethod
    def of(cls, query: str, lengths: Iterable[int], manifest: Manifest, *, max_pairs: int | None = None) -> Work:
        """Estimate the work of scoring documents for a query. Long ones are scored in a limited number of windows.

        :param lengths: of the documents, in characters.
        :param max_pairs: how many documents are scored at most.
        """
        window = manifest.max_length * _CHARACTERS_PER_TOKEN
        pairs, characters = 0, 0.0
        for length in lengths:
            windows = min(-(-length // window) or 1, manifest.windows.max_count)
            pairs += 1
            characters += min(length, windows * window) + windows * len(query)
        if max_pairs is not None and pairs > max_pairs:
            return cls(max_pairs, characters * max_pairs / pairs)
        return cls(pairs, characters)

    def __add__(self, other: Work) -> Work:
        return Work(self.pairs + other.pairs, self.characters + other.characters)


@dataclass(slots=True, eq=False)
class Load:
    """The remaining work of an admitted request."""

    pairs: int
    characters: float
    deadline: Deadline


class Admission:
    """Admits requests as long as they and those admitted before can be answered in time.

    All admitted requests are assumed to progress at the same speed, as the fair queue intends. A request is refused if
    it would be late because of the others, or would make one of them late. Without others, every request is admitted.

    :param max_pairs: refuse requests while this many pairs are left to score.
    """

    def __init__(self, max_pairs: int) -> None:
        self.max_pairs = max_pairs
        self._loads: dict[Load, None] = {}
        self._lock = threading.Lock()
        # Characters scored, and seconds with admitted requests; both fade out with time.
        self._scored = 0.0
        self._busy_seconds = 0.0
        self._updated_at = time.monotonic()

    @contextmanager
    def admit(self, work: Work, deadline: Deadline) -> Iterator[Load]:
        """Admit a request for the duration of the block, or raise `OverloadedError`."""
        with self._lock:
            self._update()
            self._check(Load(work.pairs, self._bounded(work.characters, deadline), deadline))
            load = Load(work.pairs, work.characters, deadline)
            self._loads[load] = None
        try:
            yield load
        finally:
            with self._lock:
                self._update()
                del self._loads[load]

    def record(self, load: Load, pairs: int, characters: int) -> None:
        """Record that pairs were scored, or found in the cache.

        :param load: of the request that they belong to.
        """
        with self._lock:
            self._update()
            self._scored += characters
            load.pairs = max(load.pairs - pairs, 0)
            load.characters = max(load.characters - characters, 0.0)

    @property
    def speed(self) -> float | None:
        """Characters per second; None before anything was scored."""
        return self._scored / self._busy_seconds if self._scored and self._busy_seconds else None

    def _update(self) -> None:
        now = time.monotonic()
        elapsed, self._updated_at = now - self._updated_at, now
        if self._loads:  # the speed does not change while nothing is to be done
            fading = math.exp(-elapsed / _SPEED_WINDOW)
            self._scored *= fading
            self._busy_seconds = self._busy_seconds * fading + elapsed

    def _bounded(self, characters: float, deadline: Deadline) -> float:
        """Return the work that a request can get done by its deadline, if that is less than all of it."""
        if self.speed is None:
            return characters
        possible = self.speed * deadline.remaining()
        return characters if characters <= _SHARE_OF_TIME * possible else _SHARE_OF_POSSIBLE * possible

    def _check(self, load: Load) -> None:
        if not self._loads:
            return
        pairs = sum(other.pairs for other in self._loads)
        if pairs + load.pairs > self.max_pairs:
            raise OverloadedError(
                f"the queue is full: {pairs} pairs wait and {load.pairs} more would exceed "
                f"queue_pairs = {self.max_pairs}",
                retry_after=self._retry_after(),
            )
        if self.speed is not None and self._is_late(load):
            raise OverloadedError(
                f"{pairs} pairs wait, too many to score {load.pairs} more in time", retry_after=self._retry_after()
            )

    def _is_late(self, load: Load) -> bool:
        """Return whether the request would be late, or would make an earlier one late that is on time."""
        loads = [*self._loads, load]
        work = np.array([each.characters for each in loads])
        # inf − inf is not a number, so unlimited time is a large number here.
        left = np.array([min(each.deadline.remaining(), 1e9) for each in loads]) * _SHARE_OF_TIME
        # Until a request is done, each other one progresses as far, or is done before.
        speed = self.speed or math.inf
        seconds = np.minimum.outer(work, work).sum(axis=1) / speed
        seconds_before = seconds - np.minimum(work, work[-1]) / speed
        seconds_before[-1] = 0.0
        return bool(((seconds_before <= left) & (seconds > left)).any())

    def _retry_after(self) -> int:
        """Return after how many seconds the work admitted so far should be done, from 1 to 60."""
        seconds = sum(load.characters for load in self._loads) / self.speed if self.speed else 1.0
        return max(1, min(_MAX_RETRY_SECONDS, math.ceil(seconds)))
