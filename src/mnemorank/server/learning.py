"""The learning loop inside the server: event log, schedule, shadow mode, and the versions to serve."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from mnemorank._internal.deadline import Deadline
from mnemorank.errors import MissingExtraError
from mnemorank.learning.events import RerankEvent
from mnemorank.server.errors import Problem
from mnemorank.server.event_log import StoreLog
from mnemorank.server.observability import log_failure, reason_of
from mnemorank.server.pools import ThreadPool
from mnemorank.server.settings import ServerSettings

if TYPE_CHECKING:
    from mnemorank.learning.loop import Loop
    from mnemorank.learning.runs import TrainingRun
    from mnemorank.learning.schedule import Scheduler
    from mnemorank.learning.shadow import ShadowScorer

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Learning:
    """A learning loop that the server runs.

    Promoted versions are served because the server follows the loop's version folder.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._scheduler = _create_scheduler(loop)
        self._shadow = _create_shadow(loop)

    def start(self) -> None:
        """Resume a training run that a killed server left behind, and start the schedule."""
        self.loop.recover()
        if self._scheduler is not None:
            self._scheduler.start()

    def start_run(self, who: str) -> TrainingRun:
        """Mine, start training, and promote the candidate if it passes the gate."""
        return self.loop.start_run(who=who)[0]

    def observe(self, event: RerankEvent) -> None:
        """In shadow mode, queue an event for the candidate to score; return at once."""
        if self._shadow is not None and not event.test and not event.degraded and event.query is not None:
            memories = [shown.memory for shown in event.shown if shown.memory is not None]
            self._shadow.observe(event.id, event.query, memories)

    def close(self) -> None:
        if self._scheduler is not None:
            self._scheduler.stop()
        if self._shadow is not None:
            self._shadow.close()
        self.loop.close()


class LearningLog(StoreLog):
    """The event log of a server with a learning loop: the loop's store, and shadow mode."""

    def __init__(self, learning: Learning) -> None:
        super().__init__(learning.loop.store)
        self._learning = learning

    def record(self, event: RerankEvent) -> None:
        super().record(event)
        self._learning.observe(event)

    def close(self) -> None:
        """Do nothing: the loop closes its store."""


def open_learning(settings: ServerSettings) -> Learning:
    """Open the loop of `settings.learning`, and add a first version if it has none."""
    if settings.learning is None:
        raise ValueError("settings.learning is not set")
    try:
        from mnemorank.learning.loop import Loop
        from mnemorank.learning.settings import load_settings
    except ImportError as error:
        raise MissingExtraError(f"--learning needs `pip install 'mnemorank[learn]'` ({error})") from error
    loop_settings = load_settings(settings.learning)
    if settings.model != "mini":
        loop_settings = loop_settings.with_training(model=settings.model)
    loop = Loop(settings.learning, loop_settings, store_url=settings.store)
    try:
        loop.current()
    except BaseException:
        loop.close()
        raise
    return Learning(loop)


def with_learning(settings: ServerSettings, learning: Learning) -> ServerSettings:
    """Return the server's settings with what the loop decides: the versions to follow, and the exploration."""
    loop_settings = learning.loop.settings
    return settings.model_copy(
        update={
            "registry": settings.registry or learning.loop.versions.root,
            "explore": loop_settings.explore if settings.explore is None else settings.explore,
            "explore_seed": loop_settings.explore_seed if settings.explore_seed is None else settings.explore_seed,
        }
    )


async def run_in_store(pool: ThreadPool, work: Callable[[], T], deadline: Deadline, *, outcome: str | None = None) -> T:
    """Run work that uses the event store in a thread of the pool. A database error becomes a 503 response.

    :param outcome: what the error means for the caller, such as `nothing was stored`.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return await pool.run(work, deadline)
    except SQLAlchemyError as error:
        log_failure(logger, "the event store failed", error)
        message = "; ".join(filter(None, (f"the event store failed: {reason_of(error)}", outcome)))
        raise Problem(503, "store_failed", message) from error


def _create_shadow(loop: Loop) -> ShadowScorer | None:
    from mnemorank.learning.shadow import ShadowScorer

    return ShadowScorer(loop.store, loop.shadow_candidate) if loop.settings.shadow else None


def _create_scheduler(loop: Loop) -> Scheduler | None:
    from mnemorank.learning.schedule import Scheduler

    schedule = loop.settings.schedule
    if schedule.cron is None and schedule.after_examples is None:
        return None
    return Scheduler(
        lambda: loop.run(who="schedule"),
        loop.count_new_examples,
        cron=schedule.cron,
        after_examples=schedule.after_examples,
    )
