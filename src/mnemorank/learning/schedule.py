"""Run the loop on its own: at the times of a cron expression, or after a number of new examples."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from croniter import croniter
from croniter.croniter import CroniterBadDateError, CroniterError

from mnemorank.errors import InputError

logger = logging.getLogger(__name__)

_FIELDS = 5
# When the clock is set back by more than this, it was wrong before; by less, a run must not happen twice.
_MAX_CLOCK_STEP = timedelta(hours=1)


def next_run(cron: str, after: datetime) -> datetime:
    """Return the first time after a moment that matches a cron expression.

    :param cron: minute, hour, day, month and weekday, such as `0 3 * * *`. As in cron, when neither day nor weekday
        begins with `*`, either is enough.
    """
    if len(cron.split()) != _FIELDS:  # croniter also accepts seconds, years and aliases
        raise InputError(f"expected five fields such as '0 3 * * *', got {cron!r}", field="cron")
    try:
        moment: datetime = croniter(cron, after, max_years_between_matches=10, implement_cron_bug=True).get_next(
            datetime
        )
    except CroniterBadDateError:
        raise InputError(f"{cron!r} never occurs", field="cron", code="never") from None
    except (CroniterError, ValueError) as error:
        raise InputError(f"invalid cron expression {cron!r}: {error}", field="cron") from None
    return moment


class Scheduler:
    """Calls `run` whenever it is due, in its own thread.

    :param run: trains and promotes. Its errors are logged, and the schedule continues.
    :param new_examples: returns how many examples no model was trained on; called every `interval` seconds.
    :param after_examples: run once there are this many new examples. If that run trained on none of them, the next one
        waits for as many more.
    """

    def __init__(
        self,
        run: Callable[[], object],
        new_examples: Callable[[], int],
        *,
        cron: str | None = None,
        after_examples: int | None = None,
        interval: float = 60.0,
    ) -> None:
        self._run, self._new_examples = run, new_examples
        self._cron, self._after_examples = cron, after_examples
        self._interval = interval
        self._attempted = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_check = datetime.now()
        self.next_run = next_run(cron, self._last_check) if cron else None

    def is_due(self, now: datetime) -> bool:
        """Return whether to run now, and advance the schedule."""
        if self._cron is not None and now < self._last_check - _MAX_CLOCK_STEP:
            self.next_run = next_run(self._cron, now)
        self._last_check = now
        if self._cron is not None and self.next_run is not None and now >= self.next_run:
            self.next_run = next_run(self._cron, now)
            return True
        if self._after_examples is None:
            return False
        count = self._new_examples()
        self._attempted = min(self._attempted, count)
        if count - self._attempted < self._after_examples:
            return False
        self._attempted = count
        return True

    def start(self) -> None:
        self._thread = threading.Thread(target=self.run_forever, name="mnemorank-schedule", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def run_forever(self) -> None:
        """Keep the schedule in the calling thread until `stop` is called."""
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                if self.is_due(datetime.now()):
                    self._run()
            except Exception:  # a failed run must not end the schedule
                logger.exception("the scheduled learning run failed")
            self._stop.wait(max(self._interval - (time.monotonic() - started), 0.05))
