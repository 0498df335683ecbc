"""LazyModel: a model that is loaded on first use and unloaded when idle."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.manifest import Manifest
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import InputError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model, Scored, Scoring, prepare_with
from mnemorank.model.prepare import Prepared

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _InUse:
    """A loaded model and the number of calls in progress. After it is retired, the last call closes it."""

    model: Scoring
    calls: int = 0
    retired: bool = False


class LazyModel:
    """A model that is loaded once, in the background, while each caller waits until its own deadline.

    A failed load raises ScorerError, so that a reranker falls back to the first-stage order, and is retried later.

    :param model: a name or folder for `Model.load`, or a function that returns a model.
    :param idle_seconds: unload after this long without a call; the next call loads again. None keeps the model.
    :param retry_seconds: how long after a failed load the next attempt may start.
    :param options: for `Model.load`.
    """

    def __init__(
        self,
        model: str | Path | Callable[[], Scoring],
        *,
        idle_seconds: float | None = None,
        retry_seconds: float = 30.0,
        **options: Any,
    ) -> None:
        if idle_seconds is not None and not idle_seconds > 0:
            raise InputError(f"expected a number above 0, got {idle_seconds!r}", field="idle_seconds")
        if callable(model):
            self.name, self._load, self._source = getattr(model, "__name__", "model"), model, None
        else:
            self.name, self._source = str(model), model
            self._load = lambda: Model.load(model, **options)
        self.loads = 0
        self._idle_seconds, self._retry_seconds = idle_seconds, retry_seconds
        self._lock = threading.Lock()
        self._current: _InUse | None = None
        self._loading: Future[None] | None = None
        self._failure: tuple[Exception, float] | None = None
        self._manifest: Manifest | None = None
        self._used_at = 0.0
        self._timer: threading.Timer | None = None
        self._closed = False

    @property
    def is_loaded(self) -> bool:
        return self._current is not None

    @property
    def manifest(self) -> Manifest:
        """The manifest; it is read without loading the model if the model was given by name."""
        if self._manifest is None:
            if self._source is not None:
                self._manifest = load_artifact(self._source).manifest
            else:
                with self._using(None) as model:
                    self._manifest = model.manifest
        return self._manifest

    def score(
        self,
        query: str,
        memories: Sequence[Memory],
        *,
        instruction: str | None = None,
        deadline: Deadline | None = None,
    ) -> Scored:
        with self._using(deadline) as model:
            return model.score(query, memories, instruction=instruction, deadline=deadline)

    def count_tokens(self, memories: Sequence[Memory]) -> list[int]:
        with self._using(None) as model:
            return model.count_tokens(memories)

    def prepare(self, memories: Sequence[Memory]) -> Prepared:
        with self._using(None) as model:
            return prepare_with(model, memories)

    def warm_up(self) -> None:
        """Load the model and score once, so that the first real call is fast."""
        self.score("warm up", [Memory("warm up")])

    def unload(self) -> None:
        """Release the memory. Calls in progress finish first; the next call loads again."""
        with self._lock:
            current, self._current = self._current, None
            self._stop_timer()
            unused = _retire(current)
        if unused is not None:
            unused.close()

    def close(self) -> None:
        """Unload; later calls raise ScorerError."""
        with self._lock:
            self._closed = True
        self.unload()

    @contextmanager
    def _using(self, deadline: Deadline | None) -> Iterator[Scoring]:
        current = self._enter(deadline)
        try:
            yield current.model
        finally:
            self._leave(current)

    def _enter(self, deadline: Deadline | None) -> _InUse:
        while True:
            with self._lock:
                if self._closed:
                    raise ScorerError(f"{self.name}: the model was closed")
                if self._current is not None:
                    self._current.calls += 1
                    return self._current
                loading = self._begin_loading()
            timeout = None if deadline is None else deadline.timeout()
            try:
                loading.result(timeout)
            except TimeoutError:
                raise ScorerError(f"{self.name}: still loading at the deadline") from None
            except Exception as error:
                raise ScorerError(f"{self.name}: could not be loaded: {error}") from error

    def _leave(self, current: _InUse) -> None:
        with self._lock:
            current.calls -= 1
            self._used_at = time.monotonic()
            is_last = current.retired and current.calls == 0
            if self._idle_seconds is not None and self._timer is None and current is self._current:
                self._start_timer(self._idle_seconds)
        if is_last:
            current.model.close()

    def _begin_loading(self) -> Future[None]:
        """Start a load, or return the one in progress. The caller holds the lock."""
        if self._loading is not None:
            return self._loading
        loading: Future[None] = Future()
        if self._failure is not None:
            error, failed_at = self._failure
            if time.monotonic() - failed_at < self._retry_seconds:
                loading.set_exception(error)
                return loading
        self._loading = loading
        threading.Thread(target=self._run_load, args=(loading,), name=f"load {self.name}", daemon=True).start()
        return loading

    def _run_load(self, loading: Future[None]) -> None:
        started = time.monotonic()
        try:
            model = self._load()
        except Exception as error:
            with self._lock:
                self._failure, self._loading = (error, time.monotonic()), None
            logger.warning("%s: could not be loaded: %s", self.name, error)
            loading.set_exception(error)
            return
        with self._lock:
            self.loads += 1
            self._loading = self._failure = None
            self._manifest = model.manifest
            self._used_at = time.monotonic()
            closed = self._closed
            if not closed:
                self._current = _InUse(model)
                if self._idle_seconds is not None:
                    self._start_timer(self._idle_seconds)
        if closed:
            model.close()
        logger.info("%s: loaded in %.1f s", self.name, time.monotonic() - started)
        loading.set_result(None)

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = threading.Timer(seconds, self._unload_if_idle)
        self._timer.daemon = True
        self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _unload_if_idle(self) -> None:
        with self._lock:
            self._timer = None
            if self._current is None or self._idle_seconds is None:
                return
            left = self._used_at + self._idle_seconds - time.monotonic()
            if self._current.calls or left > 0:
                self._start_timer(left if left > 0 else self._idle_seconds)
                return
            current, self._current = self._current, None
            unused = _retire(current)
        if unused is not None:
            unused.close()
            logger.info("%s: unloaded after %.0f s without a call", self.name, self._idle_seconds)


def _retire(current: _InUse | None) -> Scoring | None:
    """Return the model to close now; None if there is none, or if a call in progress will close it."""
    if current is None:
        return None
    current.retired = True
    return None if current.calls else current.model
