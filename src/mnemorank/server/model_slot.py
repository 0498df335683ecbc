"""The served model. A new model is loaded next to the old one, checked and warmed up, and then takes over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank._internal.hardware import available_cores, release_freed_memory
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import MnemorankError
from mnemorank.memory.memory import Memory
from mnemorank.model.model import Model
from mnemorank.reranker import Reranker
from mnemorank.scorers import Scorer
from mnemorank.scorers.protocol import PairScorer
from mnemorank.server.batching import BatchingScorer, CountingScorer
from mnemorank.server.errors import SwapError
from mnemorank.server.observability import Metrics
from mnemorank.server.score_cache import CachingScorer
from mnemorank.server.settings import ServerSettings, redact_url

logger = logging.getLogger(__name__)

_MAX_ABANDONED = 2
PROBE_QUERY = "Where does Ruby work now?"
PROBE_TEXTS = (
    "Ruby joined Aurora Labs in March 2024.",
    "The cat sleeps.",
    "Ruby's dentist moved to Lisbon, and the flight there takes three hours. " * 4,
)


@dataclass(slots=True)
class ServedModel:
    """A model in service.

    :param scorer: the scorer that queues and counts; the model's own may be a score cache around it.
    :param source: the name or folder that the model was loaded from.
    """

    model: Model
    scorer: CountingScorer
    reranker: Reranker
    source: str
    loaded_at: float = field(default_factory=time.time)
    leases: int = 0
    is_retired: bool = False

    @property
    def label(self) -> str:
        """Identify the model as `name@version+fingerprint`, for logs and events."""
        manifest = self.model.manifest
        return f"{manifest.name}@{manifest.version}+{self.model.fingerprint}"


class ModelSlot:
    """Holds the served model. A request acquires it and finishes on the model that it began with.

    :param swap_timeout: seconds that loading and checking a model may take, except for the first one.
    """

    def __init__(
        self, load: Callable[[str | Path], ServedModel], metrics: Metrics, swap_timeout: float | None = None
    ) -> None:
        self._load = load
        self._metrics = metrics
        self._swap_timeout = swap_timeout
        self._abandoned: list[_Loading] = []
        self._current: ServedModel | None = None
        self._lock = threading.Lock()
        self._swapping = threading.Lock()

    @property
    def current(self) -> ServedModel | None:
        return self._current

    def acquire(self) -> ServedModel:
        """Return the current model and keep it open until `release`."""
        with self._lock:
            if self._current is None:
                raise SwapError("no model is loaded")
            self._current.leases += 1
            return self._current

    def release(self, served: ServedModel) -> None:
        with self._lock:
            served.leases -= 1
            is_last = served.is_retired and served.leases == 0
        if is_last:
            _close_in_background(served)

    def swap(self, name: str | Path) -> ServedModel:
        """Load, check and warm up a model, then serve it. Raises `SwapError` and keeps the old model if that fails.

        Blocks for seconds: call it from a thread.
        """
        return self._swap(name, self._swap_timeout)

    def load_first(self, name: str | Path) -> ServedModel:
        """Serve the first model. Raises the loader's own error, since there is no old model to keep."""
        try:
            return self._swap(name, None)
        except SwapError as error:
            raise error.__cause__ or error from None

    def _swap(self, name: str | Path, timeout: float | None) -> ServedModel:
        with self._swapping:
            try:
                new = self._load_in_time(name, timeout)
            except Exception as error:  # the old model stays if anything is wrong with the new one
                self._metrics.swaps.labels("refused").inc()
                is_known = isinstance(error, MnemorankError)
                fields = {"model": redact_url(str(name)), "reason": str(error)}
                logger.error("model refused", exc_info=not is_known, extra={"fields": fields})
                raise SwapError(f"the model was refused: {error}") from error
            self._install(new)
            self._metrics.swaps.labels("done").inc()
            logger.info("model served", extra={"fields": {"model": new.label, "source": redact_url(new.source)}})
            return new

    def _load_in_time(self, name: str | Path, timeout: float | None) -> ServedModel:
        """Load a model, but do not wait forever for one that hangs: nothing can stop a model that computes."""
        if timeout is None:
            return self._load(name)
        self._abandoned = [loading for loading in self._abandoned if loading.is_alive()]
        if len(self._abandoned) >= _MAX_ABANDONED:
            raise SwapError("models that took too long are still being loaded; try again later, or restart the server")
        loading = _Loading(self._load, name)
        loading.start()
        try:
            return loading.result(timeout)
        except TimeoutError:
            self._abandoned.append(loading)
            raise SwapError(f"loading and checking took longer than swap_timeout = {timeout:g} seconds") from None

    def close(self) -> None:
        """Close the model without waiting for requests."""
        with self._lock:
            old, self._current = self._current, None
        if old is not None:
            old.reranker.close()

    def _install(self, new: ServedModel) -> None:
        with self._lock:
            old, self._current = self._current, new
            is_idle = old is not None and old.leases == 0
            if old is not None:
                old.is_retired = True
        manifest = new.model.manifest
        self._metrics.show_model(manifest.name, manifest.version, new.model.fingerprint)
        if old is not None and is_idle:
            _close_in_background(old)


class _Loading(threading.Thread):
    """Loads a model. If nobody waits for it anymore, the model is closed."""

    def __init__(self, load: Callable[[str | Path], ServedModel], name: str | Path) -> None:
        super().__init__(name="mnemorank-load-model", daemon=True)
        self._load, self._source = load, name
        self._future: Future[ServedModel] = Future()
        self._is_abandoned = False
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            served = self._load(self._source)
        except BaseException as error:
            self._future.set_exception(error)
            return
        with self._lock:
            self._future.set_result(served)
            if self._is_abandoned:
                _close([served])

    def result(self, timeout: float) -> ServedModel:
        try:
            return self._future.result(timeout)
        except FutureTimeoutError:
            with self._lock:
                if self._future.done():  # just now
                    return self._future.result()
                self._is_abandoned = True
            raise TimeoutError from None


def _close_in_background(served: ServedModel) -> None:
    threading.Thread(target=_close, args=([served],), name="mnemorank-close-model", daemon=True).start()


def _close(models: list[ServedModel]) -> None:
    """Close the models of a list and empty it, so that nothing here keeps them in memory."""
    while models:
        models.pop().reranker.close()
    release_freed_memory()  # otherwise the memory of every swap would add up


def load_served(name: str | Path, settings: ServerSettings, metrics: Metrics) -> ServedModel:
    """Load a model, verify its hashes, probe it, and add batching and the score cache."""
    family = load_artifact(name).manifest.family
    has_threads = family in ("onnx", "split")
    cores = (settings.threads or available_cores()) if has_threads else 1
    options: dict[str, Any] = {}
    if has_threads:
        # With batching, the threads of the batching scorer run the model.
        options["threads"] = 1 if settings.batching else cores
    if family == "onnx":
        options["token_budget"] = settings.token_budget
    model = Model.load(name, states=settings.states, **options)
    try:
        probe(model)
    except MnemorankError:
        model.close()
        raise
    counting = CountingScorer(model.scorer)
    if isinstance(model.scorer, PairScorer):
        model.scorer.on_batch = metrics.observe_batch
        if settings.batching:
            counting = BatchingScorer(model.scorer, settings.queue_pairs, cores)
    scorer: Scorer = counting
    if settings.score_cache:
        scorer = CachingScorer(counting, settings.score_cache, metrics.cached_pairs.inc)
    served = replace(model, scorer=scorer)
    return ServedModel(served, counting, Reranker(served), str(name))


def probe(model: Model) -> None:
    """Score known pairs, which also warms up the model, and check that the scores are numbers."""
    together = model.score(PROBE_QUERY, [Memory(text) for text in PROBE_TEXTS]).raw
    if not np.isfinite(together).all():
        raise SwapError(f"{model.manifest.name}: the model returned scores that are not numbers: {together.tolist()}")
    alone = np.array([model.score(PROBE_QUERY, [Memory(text)]).raw[0] for text in PROBE_TEXTS])
    if not np.allclose(together, alone, atol=0.05, rtol=0.01):
        logger.warning(
            "scores depend on their batch",
            extra={"fields": {"model": model.manifest.name, "together": together.tolist(), "alone": alone.tolist()}},
        )
