"""A thread pool that survives a fork."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """A pool of threads that survives a fork (gunicorn's `--preload`, Celery's prefork, `multiprocessing` on Linux).

    A forked child has none of its parent's threads, so what it submits to the parent's pool would never run. It gets a
    pool of its own instead.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._threads, self._name = threads, name
        self._is_closed = False
        self._process_id, self._pool = os.getpid(), self._new_pool()

    def submit(self, function: Callable[[T], R], item: T) -> Future[R]:
        """Schedule a call; raise RuntimeError after `shutdown`."""
        return self.executor().submit(function, item)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        return self.executor().map(function, items)

    def shutdown(self, *, wait: bool = True, cancel_futures: bool = False) -> None:
        """Stop accepting work.

        :param wait: wait for the calls in progress in this process.
        """
        pool = self.executor()
        self._is_closed = True
        pool.shutdown(wait=wait, cancel_futures=cancel_futures)

    def executor(self) -> ThreadPoolExecutor:
        """Return the pool of this process."""
        if self._process_id != os.getpid():
            self._process_id, self._pool = os.getpid(), self._new_pool()
            if self._is_closed:
                self._pool.shutdown()
        return self._pool

    def _new_pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix=self._name)
