"""RerankerService: R3's facade over any model. Dicts go in; new dicts with `rerank_score` come out, best first."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from mnemorank._internal.hardware import HardwareProfile, detect_hardware
from mnemorank._internal.threads import Workers
from mnemorank.artifact.resolve import bundled_models, load_artifact
from mnemorank.errors import InputError
from mnemorank.model.lazy import LazyModel
from mnemorank.model.model import Model, Scoring
from mnemorank.options import Options
from mnemorank.reranker import Reranker
from mnemorank.results import Degradation
from mnemorank.scorers.remote.address import is_remote

logger = logging.getLogger(__name__)

Candidate = Mapping[str, Any]
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the service did so far.

    :param scored: results that carry a model's score.
    :param degraded: calls that a model could not answer, or not fully.
    """

    calls: int = 0
    candidates: int = 0
    scored: int = 0
    degraded: int = 0
    seconds: float = 0.0
    last_error: str | None = None


class RerankerService:
    """Reranks lists of dicts, from ordinary code and from an event loop.

    >>> service = RerankerService()
    >>> service.rerank_results("Where does Ruby work?", [{"content": "Ruby works at Aurora."}])

    The model is loaded by the first call or by `warmup`, once, in a thread.

    :param profile: a `HardwareProfile`, or R3's profile, of which `cpu_only` and `vector_enabled` are read; by default
        the machine is looked at when the model is loaded.
    :param reranker_model: `mini` (bundled), a folder, a hub name, a remote address, or anything that scores memories.
    :param adapters: further models by name, to be chosen per call; LoRA adapters of one base share it in memory.
    :param max_candidates: how many are scored; the rest follow in their order.
    :param deadline_ms: the longest a call may score; what was not reached follows in its order.
    :param idle_seconds: unload a model after this long without a call.
    :param options: of the ranking. By default results are in the order of their scores alone: nothing is demoted.
    :param model_options: for the model's scorer; they overrule the profile.
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
        self._statistics = Statistics()
        self._lock = threading.Lock()
        self._closed = False
        # Not the event loop's own threads: waiting for a model to load must not keep others from theirs.
        self._workers = Workers(8, "mnemorank-service")

    def rerank_results(
        self,
        query: str,
        candidates: Sequence[Candidate],
        score_field: str = "content",
        top_k: int | None = None,
        instruction: str | None = None,
        *,
        adapter: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return new dicts, best first, each with `rerank_score`. The candidates are not modified.

        Empty or missing texts come last with a score of 0. Candidates that were not scored (beyond `max_candidates`, or
        past the deadline) follow the scored ones in their order with a score of None; if the model fails, all do.

        :param score_field: the key that holds the text.
        :param instruction: for models that take one.
        :param adapter: the name of one of `adapters`.
        """
        return self._rerank(query, candidates, score_field, top_k, instruction, adapter)

    async def arerank_results(
        self,
        query: str,
        candidates: Sequence[Candidate],
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
        """Load the model and score once. Raises ScorerError if that fails."""
        model = self._rerankers[None].model
        if isinstance(model, LazyModel):
            model.warm_up()

    async def awarmup(self) -> None:
        await self._in_thread(self.warmup)

    def get_statistics(self) -> dict[str, Any]:
        """R3's figures and ours."""
        model = self._rerankers[None].model
        with self._lock:
            now = self._statistics
        return {
            "total_reranks": now.calls,
            "total_candidates": now.candidates,
            "total_scored": now.scored,
            "total_degraded": now.degraded,
            "total_processing_time": now.seconds,
            "average_time_per_rerank": now.seconds / now.calls if now.calls else 0.0,
            "last_error": now.last_error,
            "reranker_model": model.name if isinstance(model, LazyModel) else model.manifest.name,
            "loaded": model.is_loaded if isinstance(model, LazyModel) else True,
            "max_candidates": self.max_candidates,
        }

    def clear_cache(self) -> None:
        """Give back the models' memory; the next call loads again."""
        for reranker in self._rerankers.values():
            if isinstance(reranker.model, LazyModel):
                reranker.model.unload()

    def cleanup(self) -> None:
        """Close for good; may be called twice. Later calls answer with the candidates in their order."""
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
        candidates: Sequence[Candidate],
        score_field: str,
        top_k: int | None,
        instruction: str | None,
        adapter: str | None,
    ) -> list[dict[str, Any]]:
        started = time.monotonic()
        candidates = list(candidates)
        texts = [_text(candidate, score_field, index) for index, candidate in enumerate(candidates)]
        if adapter not in self._rerankers:
            known = ", ".join(name for name in self._rerankers if name) or "none"
            raise InputError(f"unknown {adapter!r}; there are: {known}", field="adapter")
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
            kept = range(len(candidates))[:top_k]
            return [{**candidates[i], "rerank_score": None if texts[i].strip() else 0.0} for i in kept]
        return [
            {**candidates[result.index], "rerank_score": result.score if texts[result.index].strip() else 0.0}
            for result in ranking
        ]

    def _count(self, candidates: int, scored: int, degraded: Degradation | None, seconds: float) -> None:
        with self._lock:
            before = self._statistics
            self._statistics = Statistics(
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
        name = _model_name(model)

        def load() -> Model:
            family = load_artifact(name).manifest.family
            machine = _hardware(self.profile, family)
            return Model.load(name, **{**machine.scorer_options(family), **model_options})

        load.__name__ = str(name)
        return LazyModel(load, idle_seconds=idle_seconds)


def _text(candidate: Candidate, field: str, index: int) -> str:
    if not isinstance(candidate, Mapping):
        raise InputError(f"candidate {index}: expected a dict, got {type(candidate).__name__}")
    value = candidate.get(field)
    return value if isinstance(value, str) else "" if value is None else str(value)


def _model_name(model: str | Path) -> str | Path:
    """R3 names hub models as `org/name`; a folder of that name comes first."""
    if isinstance(model, Path) or model in bundled_models() or is_remote(model) or Path(model).expanduser().exists():
        return model
    return f"hf:{model}" if _HUB_NAME.fullmatch(model) else model


def _hardware(profile: HardwareProfile | object | None, family: str) -> HardwareProfile:
    if isinstance(profile, HardwareProfile):
        return profile
    cpu_only = getattr(profile, "cpu_only", False) or not getattr(profile, "vector_enabled", True)
    return detect_hardware(accelerators=not cpu_only and family not in ("onnx", "remote"))
