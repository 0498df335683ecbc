"""The learning loop inside the server: its event log, schedule, shadow and hot swap."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mnemorank.errors import MissingExtraError, MnemorankError
from mnemorank.server.events import RerankEvent
from mnemorank.server.settings import Settings

if TYPE_CHECKING:
    from mnemorank.learning.loop import Loop
    from mnemorank.learning.runs import Run
    from mnemorank.learning.schedule import Scheduler
    from mnemorank.learning.shadow import Shadow

logger = logging.getLogger(__name__)


class Learning:
    """A loop that the server runs.

    The promoted version is served because the server follows the loop's registry; nothing else is needed for it.
    """

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self._scheduler = _scheduler(loop)
        self._shadow: Shadow | None = None
        self._changing_shadow = threading.Lock()

    def start(self) -> None:
        """Go on with a training that a killed server left, and keep the schedule."""
        self.loop.recover()
        if self._scheduler is not None:
            self._scheduler.start()

    def begin_run(self, who: str) -> Run:
        """Mine and begin to train; the candidate is promoted if the gate lets it."""
        self.loop.mine()
        return self.loop.train(promote=True, who=who)[0]

    def follow_shadow(self, event: RerankEvent) -> None:
        """Let the newest candidate that passed the gate score the event, where the settings ask for a shadow."""
        if not self.loop.settings.shadow:
            return
        with self._changing_shadow:
            wanted = self.loop.shadow_candidate()
            if self._shadow is not None and (wanted is None or wanted.name != self._shadow.version):
                self._shadow.close()
                self._shadow = None
            if wanted is not None and self._shadow is None:
                from mnemorank.learning.shadow import Shadow

                self._shadow = Shadow(self.loop.store, wanted)
            shadow = self._shadow
        if shadow is not None:
            shadow.observe(event.id, event.query, [shown.memory for shown in event.shown if shown.memory is not None])

    def close(self) -> None:
        if self._scheduler is not None:
            self._scheduler.stop()
        if self._shadow is not None:
            self._shadow.close()
        self.loop.close()


class LearningLog:
    """The event log of a server with a learning loop: the loop's store, and its shadow."""

    def __init__(self, learning: Learning) -> None:
        from mnemorank.server.store_log import StoreLog

        self.store = learning.loop.store
        self._log = StoreLog(self.store)
        self._learning = learning

    def record(self, event: RerankEvent) -> None:
        self._log.record(event)
        try:
            self._learning.follow_shadow(event)
        except MnemorankError:
            logger.exception("the shadow model cannot be run")


def open_learning(settings: Settings) -> Learning:
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


def with_learning(settings: Settings, learning: Learning) -> Settings:
    """The server's settings with what the loop decides: the registry that is followed, and how much is explored."""
    registry: Path = learning.loop.registry.root
    return replace(
        settings, registry=settings.registry or registry, explore=settings.explore or learning.loop.settings.explore
    )


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
