"""The learning loop inside the server: its event log, schedule, shadow and hot swap."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mnemorank.errors import MissingExtraError
from mnemorank.learning.events import RerankEvent
from mnemorank.server.event_log import StoreLog
from mnemorank.server.settings import ServerSettings

if TYPE_CHECKING:
    from mnemorank.learning.loop import Loop
    from mnemorank.learning.runs import Run
    from mnemorank.learning.schedule import Scheduler
    from mnemorank.learning.shadow import Shadow
import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from mnemorank.server.errors import Problem
from mnemorank.server.observability import log_failure, reason_of


class Learning:
    """A loop that the server runs.

    The promoted version is served because the server follows the loop's registry; nothing else is needed for it.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._scheduler = _scheduler(loop)
        self._shadow = _shadow(loop)

    def start(self) -> None:
        """Go on with a training that a killed server left, and keep the schedule."""
        self.loop.recover()
        if self._scheduler is not None:
            self._scheduler.start()

    def begin_run(self, who: str) -> Run:
        """Mine and begin to train; the candidate is promoted if the gate lets it."""
        return self.loop.begin(who=who)[0]

    def observe(self, event: RerankEvent) -> None:
        """Let the candidate in the shadow score an event, where the settings ask for one; returns at once."""
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
    """The event log of a server with a learning loop: the loop's store, and its shadow."""

    def __init__(self, learning: Learning) -> None:
        super().__init__(learning.loop.store)
        self._learning = learning

    def record(self, event: RerankEvent) -> None:
        super().record(event)
        self._learning.observe(event)

    def close(self) -> None:
        """Do nothing: the loop closes its store."""


def open_learning(settings: ServerSettings) -> Learning:
    """The loop of `settings.learning`, with a first version in its registry."""
    if settings.learning is None:
        raise ValueError("no learning folder")
    try:
        from mnemorank.learning.loop import Loop
        from mnemorank.learning.settings import load_settings
    except ImportError as error:
        raise MissingExtraError(f"--learning needs `pip install 'mnemorank[learn,eval]'` ({error})") from error
    stated = load_settings(settings.learning)
    if settings.model != "mini":
        stated = replace(stated, training=replace(stated.training, model=settings.model))
    loop = Loop(settings.learning, stated, store_url=settings.store)
    try:
        loop.current()
    except BaseException:
        loop.close()
        raise
    return Learning(loop)


def with_learning(settings: ServerSettings, learning: Learning) -> ServerSettings:
    """The server's settings with what the loop decides: the registry that is followed, and how much is explored."""
    registry: Path = learning.loop.registry.root
    stated = learning.loop.settings
    return settings.model_copy(
        update={
            "registry": settings.registry or registry,
            "explore": stated.explore if settings.explore is None else settings.explore,
            "explore_seed": stated.explore_seed if settings.explore_seed is None else settings.explore_seed,
        }
    )


def _shadow(loop: Loop) -> Shadow | None:
    from mnemorank.learning.shadow import Shadow

    return Shadow(loop.store, loop.shadow_candidate) if loop.settings.shadow else None


def _scheduler(loop: Loop) -> Scheduler | None:
    from mnemorank.learning.schedule import Cron, Scheduler

    stated = loop.settings.schedule
    if stated.cron is None and stated.after_examples is None:
        return None
    return Scheduler(
        lambda: loop.run(who="schedule"),
        loop.new_examples,
        cron=Cron.parse(stated.cron) if stated.cron else None,
        after_examples=stated.after_examples,
    )


logger = logging.getLogger(__name__)
T = TypeVar("T")


async def stored(work: Callable[[], T], outcome: str = "") -> T:
    """Do the work in a thread.

    :param outcome: what the caller should know if the store fails, such as `, and nothing was stored`.
    """
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return await asyncio.to_thread(work)
    except SQLAlchemyError as error:
        log_failure(logger, "the event store failed", error)
        message = f"the event store failed{outcome}: {reason_of(error)}"
        raise Problem(503, "store_failed", message) from error
