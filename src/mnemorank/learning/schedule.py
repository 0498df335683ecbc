"""When the loop runs by itself: cron expressions and counts of new examples."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from mnemorank.errors import InputError

logger = logging.getLogger(__name__)

_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
_YEARS = 5
_SET_BACK = timedelta(hours=1)  # a clock that goes back further was wrong; by less, a run would come twice


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression: minute, hour, day, month, weekday (0 or 7 is Sunday), with `*`, `a-b`, `a,b` and `/step`.

    As in cron, where both day and weekday are restricted either is enough.
    """

    fields: tuple[frozenset[int], ...]
    is_any_day: bool
    is_any_weekday: bool

    @classmethod
    def parse(cls, text: str) -> Cron:
        parts = text.split()
        if len(parts) != len(_FIELDS):
            raise InputError(f"expected five fields such as '0 3 * * *', got {text!r}", field="cron")
        read = [_values(part, *field) for part, field in zip(parts, _FIELDS, strict=True)]
        read[4] = frozenset(day % 7 for day in read[4])
        return cls(tuple(read), parts[2].startswith("*"), parts[4].startswith("*"))

    def matches(self, moment: datetime) -> bool:
        minutes, hours, days, months, weekdays = self.fields
        in_days, in_weekdays = moment.day in days, moment.isoweekday() % 7 in weekdays
        is_day = in_days and in_weekdays if self.is_any_day or self.is_any_weekday else in_days or in_weekdays
        return is_day and moment.minute in minutes and moment.hour in hours and moment.month in months

    def next_after(self, moment: datetime) -> datetime:
        """The first matching minute after the moment."""
        candidate = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        limit = candidate + timedelta(days=366 * _YEARS)
        while candidate < limit:
            if self.matches(candidate):
                return candidate
            whole_day = candidate.replace(hour=23, minute=59)
            is_day = any(self.matches(candidate.replace(hour=h, minute=min(self.fields[0]))) for h in self.fields[1])
            candidate = candidate + timedelta(minutes=1) if is_day else whole_day + timedelta(minutes=1)
        raise InputError("never comes, such as the 31st of February", field="cron")


def _values(part: str, name: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for piece in part.split(","):
        span, slash, step = piece.partition("/")
        first, dash, last = span.partition("-")
        try:
            if span == "*":
                bounds = (low, high)
            elif dash:
                bounds = (int(first), int(last))
            else:
                bounds = (int(first), high if slash else int(first))
            stride = int(step) if slash else 1
        except ValueError:
            raise InputError(f"{name}: cannot read {piece!r}", field="cron") from None
        if not (low <= bounds[0] <= bounds[1] <= high and stride >= 1):
            raise InputError(f"{name}: expected {low} to {high}, got {piece!r}", field="cron")
        found.update(range(bounds[0], bounds[1] + 1, stride))
    return frozenset(found)


class Scheduler:
    """Calls `run` when it is due, in a thread of its own.

    :param new_examples: how many examples there are that no model was trained on; asked every `interval` seconds.
    :param after_examples: runs once there are so many, and where that run trained on none, once there are as many more.
    :param run: trains and promotes; an error in it is logged and the schedule goes on.
    """

    def __init__(
        self,
        run: Callable[[], object],
        new_examples: Callable[[], int],
        *,
        cron: Cron | None = None,
        after_examples: int | None = None,
        interval: float = 60.0,
    ) -> None:
        self._run, self._new_examples = run, new_examples
        self._cron, self._after = cron, after_examples
        self._interval = interval
        self._tried = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen = datetime.now()
        self._due = cron.next_after(self._seen) if cron else None

    def is_due(self, moment: datetime) -> bool:
        """Whether to run now; asking moves the cron's next time on."""
        if self._cron is not None and moment < self._seen - _SET_BACK:
            self._due = self._cron.next_after(moment)
        self._seen = moment
        if self._cron is not None and self._due is not None and moment >= self._due:
            self._due = self._cron.next_after(moment)
            return True
        if self._after is None:
            return False
        found = self._new_examples()
        self._tried = min(self._tried, found)
        if found - self._tried < self._after:
            return False
        self._tried = found
        return True

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="mnemorank-schedule", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def run_forever(self) -> None:
        """`start` in this thread, for the command line."""
        self._loop()

    def _loop(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                if self.is_due(datetime.now()):
                    self._run()
            except Exception:  # whatever it was, the next time must come
                logger.exception("the scheduled learning run failed")
            self._stop.wait(max(self._interval - (time.monotonic() - started), 0.05))
