"""RerankerService: the interface of the RerankerService project, with any model: dicts in, ranked dicts out."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mnemorank._internal.hardware import HardwareProfile, detect_hardware
from mnemorank._internal.threads import Workers
from mnemorank.artifact.resolve import load_artifact
from mnemorank.errors import InputError
from mnemorank.model.lazy import LazyModel
from mnemorank.model.model import Model, Scoring
from mnemorank.options import Options
from mnemorank.reranker import Reranker
from mnemorank.results import Degradation

logger = logging.getLogger(__name__)

CandidateDict = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ServiceStatistics:
    """Counts of what a service has done.

    :param scored: results with a score of the model.
    :param degraded: calls that the model did not score, or not completely.
    """

    calls: int = 0
    candidates: int = 0
    scored: int = 0
    degraded: int = 0
    seconds: float = 0.0
    last_error: str | None = None


class RerankerService:
    """Reranks lists of dicts, from synchronous and asynchronous code.

        service = RerankerService()
        service.rerank_results("Where does Ruby work?", [{"content": "Ruby works at Aurora."}])

    The model is loaded once, in a thread, by the first call or by `warmup`.

    :param profile: a `HardwareProfile`, or any object with `cpu_only` and `vector_enabled`, like the profile of the
        RerankerService project; by default the hardware is detected when the model is loaded.
    :param reranker_model: `mini` (bundled), a folder, a Hugging Face Hub id, the address of a remote model, or an
        object that scores memories.
    :param adapters: further models by name, to be chosen per call. LoRA adapters of one base share its memory.
    :param max_candidates: how many candidates are scored; the others follow in their order.
    :param deadline_ms: stop scoring after this long; candidates not scored by then follow in their order.
    :param idle_seconds: unload a model after this long without a call.
    :param options: of the ranking. By default results are ordered by their scores alone.
    :param model_options: for the model's scorer; they override the profile.
    """

    def __init__(
        self,
        profile: HardwareProfile | object | None = None,
        reranker_model: str | Path | Scoring = "mini",
        *,
        adapters: Mapping[str, str | Path | Scoring] | None = None,
        max_candidates: int = 100,
        deadline_ms: float | None = None,
        idle_seconds: float | None = None,
        options: Options | None = None,
        **model_options: Any,
    ) -> None:
        if not isinstance(max_candidates, int) or max_candidates < 1:
            raise InputError(f"expected a whole number from 1, got {max_candidates!r}", field="max_candidates")
        self.profile = profile
        self.reranker_model = reranker_model
        self.max_candidates = max_candidates
        self.deadline_ms = deadline_ms
        self._options = replace(options or Options(supersession="off"), max_scored=max_candidates)
        models: list[tuple[str | None, str | Path | Scoring]] = [(None, reranker_model), *(adapters or {}).items()]
        self._rerankers = {name: Reranker(self._model(model, idle_seconds, model_options)) for name, model in models}
        self._statistics = ServiceStatistics()
        self._lock = threading.Lock()
        self._closed = False
        # Separate from the event loop's threads, which must not be blocked while a model loads.
        self._workers = Workers(8, "mnemorank-service")

    def rerank_results(
        self,
        query: str,
        candidates: Sequence[CandidateDict],
        score_field: str = "content",
        top_k: int | None = None,
        instruction: str | None = None,
        *,
        adapter: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return copies of the candidates, best first, with `rerank_score` added.

        Empty and missing texts come last with a score of 0. Candidates that were not scored (beyond `max_candidates`,
        or past the deadline) follow in their order with a score of None. If the model fails, this applies to all.

        :param score_field: the key that holds the text.
        :param instruction: for models that take one.
        :param adapter: the name of one of `adapters`.
        """
        return self._rerank(query, candidates, score_field, top_k, instruction, adapter)

    async def arerank_results(
        self,
        query: str,
        candidates: Sequence[CandidateDict],
        score_field: str = "content",
        top_k: int | None = None,
        instruction: str | None = None,
        *,
        adapter: str | None = None,
    ) -> list[dict[str, Any]]:
        """Run `rerank_results` in a thread, so that the event loop stays free."""
        call = partial(self._rerank, query, candidates, score_field, top_k, instruction, adapter)
        results: list[dict[str, Any]] = await self._in_thread(call)
        return results

    def warmup(self) -> None:
        """Load the model and score once. Raises `ScorerError` if that fails."""
        model = self._rerankers[None].model
        if isinstance(model, LazyModel):
            model.warm_up()

    async def awarmup(self) -> None:
        """Run `warmup` in a thread."""
        await self._in_thread(self.warmup)

    def get_statistics(self) -> dict[str, Any]:
        """Return the counts of the RerankerService project and our own."""
        model = self._rerankers[None].model
        with self._lock:
            statistics = self._statistics
        return {
            "total_reranks": statistics.calls,
            "total_candidates": statistics.candidates,
            "total_scored": statistics.scored,
            "total_degraded": statistics.degraded,
            "total_processing_time": statistics.seconds,
            "average_time_per_rerank": statistics.seconds / statistics.calls if statistics.calls else 0.0,
            "last_error": statistics.last_error,
            "reranker_model": model.name if isinstance(model, LazyModel) else model.manifest.name,
            "loaded": model.is_loaded if isinstance(model, LazyModel) else True,
            "max_candidates": self.max_candidates,
        }

    def clear_cache(self) -> None:
        """Unload the models; the next call loads them again."""
        for reranker in self._rerankers.values():
            if isinstance(reranker.model, LazyModel):
                reranker.model.unload()

    def cleanup(self) -> None:
        """Close the service. Later calls return the candidates in their order."""
        self._closed = True
        self._workers.shutdown(wait=False)
        for reranker in self._rerankers.values():
            reranker.close()

    def __enter__(self) -> RerankerService:
        return self

    def __exit__(self, *_: object) -> None:
        self.cleanup()

    async def _in_thread(self, call: partial[Any] | Any) -> Any:
        if self._closed:
            return call()
        return await asyncio.get_running_loop().run_in_executor(self._workers.executor(), call)

    def _rerank(
        self,
        query: str,
        candidates: Sequence[CandidateDict],
        score_field: str,
        top_k: int | None,
        instruction: str | None,
        adapter: str | None,
    ) -> list[dict[str, Any]]:
        started = time.monotonic()
        candidates = list(candidates)
        texts = [_text(candidate, score_field, index) for index, candidate in enumerate(candidates)]
        if adapter not in self._rerankers:
            known = ", ".join(name for name in self._rerankers if name) or "no adapters"
            raise InputError(f"unknown adapter {adapter!r}; expected one of {known}", field="adapter", code="unknown")
        if not candidates:
            return []
        pool = [{**candidate, score_field: text} for candidate, text in zip(candidates, texts, strict=True)]
        ranking = self._rerankers[adapter].rerank(
            query,
            pool,
            top_k=top_k,
            instruction=instruction,
            deadline_ms=self.deadline_ms,
            field=score_field,
            on_error="skip",
            options=self._options,
        )
        scored = sum(result.scored for result in ranking)
        self._count(len(candidates), scored, ranking.degraded, time.monotonic() - started)
        if ranking.scored_by is None:
            first = range(len(candidates))[:top_k]
            return [{**candidates[i], "rerank_score": None if texts[i].strip() else 0.0} for i in first]
        return [
            {**candidates[result.index], "rerank_score": result.score if texts[result.index].strip() else 0.0}
            for result in ranking
        ]

    def _count(self, candidates: int, scored: int, degraded: Degradation | None, seconds: float) -> None:
        with self._lock:
            before = self._statistics
            self._statistics = ServiceStatistics(
                calls=before.calls + 1,
                candidates=before.candidates + candidates,
                scored=before.scored + scored,
                degraded=before.degraded + (degraded is not None),
                seconds=before.seconds + seconds,
                last_error=before.last_error if degraded is None else degraded.message,
            )

    def _model(
        self, model: str | Path | Scoring, idle_seconds: float | None, model_options: Mapping[str, Any]
    ) -> Scoring:
        if not isinstance(model, (str, Path)):
            return model

        def load() -> Model:
            family = load_artifact(model).manifest.family
            hardware = _hardware(self.profile, family)
            return Model.load(model, **{**hardware.scorer_options(family), **model_options})

        load.__name__ = str(model)
        return LazyModel(load, idle_seconds=idle_seconds)


def _text(candidate: CandidateDict, field: str, index: int) -> str:
    if not isinstance(candidate, Mapping):
        raise InputError(f"expected a dict, got {type(candidate).__name__}", field=f"candidates.{index}")
    value = candidate.get(field)
    return value if isinstance(value, str) else "" if value is None else str(value)


def _hardware(profile: HardwareProfile | object | None, family: str) -> HardwareProfile:
    if isinstance(profile, HardwareProfile):
        return profile
    cpu_only = getattr(profile, "cpu_only", False) or not getattr(profile, "vector_enabled", True)
    return detect_hardware(accelerators=not cpu_only and family not in ("onnx", "remote"))
