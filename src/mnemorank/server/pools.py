"""Thread pools of the server, one for each thing that may hang."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import TypeVar

from mnemorank._internal.deadline import Deadline
from mnemorank.server.errors import DeadlineError, OverloadedError

T = TypeVar("T")
R = TypeVar("R")


class ThreadPool:
    """Threads for one purpose. If all of them hang, calls for other purposes still run.

    Use it on one event loop.

    :param threads: calls that may run at once.
    :param max_waiting: further calls that may wait; beyond that they are refused.
    """

    def __init__(self, name: str, threads: int, max_waiting: int) -> None:
        self._name, self._max_waiting = name, max_waiting
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"mnemorank-{name}")
        # Calls wait here and not in the executor, whose queue has no limit.
        self._free = asyncio.Semaphore(threads)
        self._waiting = 0

    async def run(self, call: Callable[[], T], deadline: Deadline) -> T:
        """Run a call in a thread. Raise `DeadlineError` at the deadline; a call in progress then still completes."""
        if self._waiting >= self._max_waiting:
            raise OverloadedError(f"{self._waiting} requests wait for the {self._name}", retry_after=1)
        self._waiting += 1
        try:
            await asyncio.wait_for(self._free.acquire(), deadline.timeout())
        except TimeoutError:
            raise DeadlineError(f"the deadline passed while others used the {self._name}; nothing was done") from None
        finally:
            self._waiting -= 1
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        future.add_done_callback(self._release)
        done, _ = await asyncio.wait([future], timeout=deadline.timeout())
        if not done:
            raise DeadlineError(f"the deadline passed before the {self._name} responded; the work may still complete")
        return future.result()

    def close(self) -> None:
        """Refuse further calls, without waiting for those in progress."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _release(self, future: asyncio.Future[T]) -> None:
        self._free.release()
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not report the error of an abandoned call


class HelperPool:
    """A few threads that all requests share to work on several items at once.

    The calling thread works on its items, too, and so does not depend on helpers that are busy with other requests.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"mnemorank-{name}")

    def map(self, function: Callable[[T], R], items: Sequence[T], *, on_error: Callable[[], None]) -> list[R]:
        """Return the results in the order of the items, or raise the first error.

        :param on_error: stops the calls in progress after an error, so that nobody waits for them.
        """
        results: dict[int, R] = {}
        errors: list[BaseException] = []
        waiting = iter(enumerate(items))
        lock = threading.Lock()

        def work() -> None:
            while True:
                with lock:
                    position, item = next(waiting, (None, None)) if not errors else (None, None)
                if position is None or item is None:
                    return
                try:
                    results[position] = function(item)
                except BaseException as error:
                    with lock:
                        errors.append(error)
                    on_error()

        count = min(len(items) - 1, self._threads)
        helpers = [self._executor.submit(copy_context().run, work) for _ in range(count)]
        work()
        wait([helper for helper in helpers if not helper.cancel()])
        if errors:
            raise errors[0]
        return [results[position] for position in range(len(items))]

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)
