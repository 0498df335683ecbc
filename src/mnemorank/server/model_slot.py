"""Hot swap: a new model is loaded beside the old one, checked and warmed, then takes over between two requests."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank._internal.hardware import available_cores
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
from mnemorank.server.score_cache import RememberingScorer
from mnemorank.server.settings import Settings, masked

logger = logging.getLogger(__name__)

PROBE_QUERY = "Where does Ruby work now?"
PROBE_TEXTS = (
    "Ruby joined Aurora Labs in March 2024.",
    "The cat sleeps.",
    "Ruby's dentist moved to Lisbon, and the flight there takes three hours. " * 4,
)


@dataclass(slots=True)
class Served:
    """A model in service.

    :param scorer: what queues and counts; the model's own may have a score cache around it.
    :param source: the name or folder it was loaded from.
    :param label: `name@version+fingerprint`, for logs and events.
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
        manifest = self.model.manifest
        return f"{manifest.name}@{manifest.version}+{self.model.fingerprint}"


class ModelSlot:
    """Holds the model that is served. Every request leases it, and finishes on the model it began with."""

    def __init__(self, load: Callable[[str | Path], Served], metrics: Metrics) -> None:
        self._load = load
        self._metrics = metrics
        self._current: Served | None = None
        self._lock = threading.Lock()
        self._swapping = threading.Lock()

    @property
    def current(self) -> Served | None:
        return self._current

    @contextmanager
    def lease(self) -> Iterator[Served]:
        """The current model, kept open until the block ends."""
        served = self.take()
        try:
            yield served
        finally:
            self.give_back(served)

    def take(self) -> Served:
        with self._lock:
            if self._current is None:
                raise SwapError("no model is loaded")
            self._current.leases += 1
            return self._current

    def give_back(self, served: Served) -> None:
        with self._lock:
            served.leases -= 1
            is_last = served.is_retired and served.leases == 0
        if is_last:
            _close_soon(served)

    def swap(self, name: str | Path) -> Served:
        """Load, check and warm a model, then serve it. If it is bad it is refused with SwapError and the old stays.

        Takes seconds and blocks: call it from a thread.
        """
        with self._swapping:
            try:
                new = self._load(name)
            except Exception as error:  # whatever is wrong with it, the old one stays
                self._metrics.swaps.labels("refused").inc()
                is_known = isinstance(error, MnemorankError)
                fields = {"model": masked(str(name)), "reason": str(error)}
                logger.error("model refused", exc_info=not is_known, extra={"fields": fields})
                raise SwapError(f"the model was refused: {error}") from error
            self._put(new)
            self._metrics.swaps.labels("done").inc()
            logger.info("model served", extra={"fields": {"model": new.label, "source": masked(new.source)}})
            return new

    def load_first(self, name: str | Path) -> Served:
        """`swap` for the start, where there is no old model to stay: the error is the loader's own."""
        try:
            return self.swap(name)
        except SwapError as error:
            raise error.__cause__ or error from None

    def close(self) -> None:
        """Take the model out of service; waits for nobody."""
        with self._lock:
            old, self._current = self._current, None
        if old is not None:
            old.reranker.close()

    def _put(self, new: Served) -> None:
        with self._lock:
            old, self._current = self._current, new
            is_idle = old is not None and old.leases == 0
            if old is not None:
                old.is_retired = True
        manifest = new.model.manifest
        self._metrics.show_model(manifest.name, manifest.version, new.model.fingerprint)
        if old is not None and is_idle:
            _close_soon(old)


def _close_soon(served: Served) -> None:
    threading.Thread(target=served.reranker.close, name="mnemorank-retire", daemon=True).start()


def load_served(name: str | Path, settings: Settings, metrics: Metrics) -> Served:
    """Load a model with its hashes checked, probe it, and put it behind the batcher."""
    is_onnx = load_artifact(name).manifest.family == "onnx"
    cores = (settings.threads or available_cores()) if is_onnx else 1
    # Where batches are shared, the batcher's own threads run the model.
    options: dict[str, Any] = {"threads": 1 if settings.batching else cores, "token_budget": settings.token_budget}
    model = Model.load(name, **(options if is_onnx else {}))
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
        scorer = RememberingScorer(counting, settings.score_cache, metrics.known_pairs.inc)
    served = replace(model, scorer=scorer)
    return Served(served, counting, Reranker(served), str(name))


def probe(model: Model) -> None:
    """Score known pairs, which also warms the model: scores must be numbers, and the same when scored again alone."""
    together = model.score(PROBE_QUERY, [Memory(text) for text in PROBE_TEXTS]).raw
    if not np.isfinite(together).all():
        raise SwapError(f"{model.manifest.name}: the probe gave scores that are not numbers: {together.tolist()}")
    alone = np.array([model.score(PROBE_QUERY, [Memory(text)]).raw[0] for text in PROBE_TEXTS])
    if not np.allclose(together, alone, atol=0.05, rtol=0.01):
        logger.warning(
            "scores depend on their batch",
            extra={"fields": {"model": model.manifest.name, "together": together.tolist(), "alone": alone.tolist()}},
        )
