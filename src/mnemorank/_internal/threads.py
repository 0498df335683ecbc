"""A thread pool that survives a fork."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
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

    def map(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Call a function with each item, in order; after an error, no more items are begun, and it is raised.

        Each thread takes the next item when it is done with one: a future for every item takes longer.
        """
        waiting = deque(range(len(items)))
        results: dict[int, R] = {}

        def take(_: int) -> None:
            while True:
                try:
                    position = waiting.popleft()
                except IndexError:
                    return
                try:
                    results[position] = function(items[position])
                except BaseException:
                    waiting.clear()
                    raise

        try:
            futures = [self.submit(take, number) for number in range(min(self._threads, len(items)))]
            wait(futures)
        finally:
            waiting.clear()
        for future in futures:
            future.result()
        return [results[position] for position in range(len(items))]

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
