"""Threads that score beside each other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


class Workers:
    """A pool of threads that outlives a fork (gunicorn's `--preload`, Celery's prefork, `multiprocessing` on Linux).

    A child has none of its parent's threads, and what it submits to their pool would wait for ever: it gets its own.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads, self._name = threads, name
        self._is_closed = False
        self._process, self._pool = os.getpid(), self._make()

    def submit(self, work: Callable[[Given], Made], item: Given) -> Future[Made]:
        """Raises RuntimeError after `shutdown`."""
        return self.executor().submit(work, item)

    def map(self, work: Callable[[Given], Made], items: Iterable[Given]) -> Iterator[Made]:
        return self.executor().map(work, items)

    def shutdown(self, *, wait: bool = True, cancel_futures: bool = False) -> None:
        """:param wait: for what is under way in this process."""
        pool = self.executor()
        self._is_closed = True
        pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def executor(self) -> ThreadPoolExecutor:
        """This process' pool."""
        if self._process != os.getpid():
            self._process, self._pool = os.getpid(), self._make()
            if self._is_closed:
                self._pool.shutdown()
        return self._pool

    def _make(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)
