"""Reranker: ranks memories for a query."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from mnemorank._internal.arrays import sigmoid
from mnemorank._internal.deadline import Deadline
from mnemorank._internal.validation import check_number
from mnemorank.artifact.calibration import model_odds
from mnemorank.artifact.manifest import Manifest
from mnemorank.artifact.templates import templates
from mnemorank.errors import InputError, ScorerError
from mnemorank.memory.memory import Memory, MemoryLike, OnError, as_pool, read_memories
from mnemorank.memory.moment import When
from mnemorank.model.model import Model, Scored, Scoring, prepare_with, score_with_truncation
from mnemorank.model.prepare import Prepared
from mnemorank.options import Options
from mnemorank.ranking.first_stage import FirstStageRanking
from mnemorank.ranking.pipeline import Pipeline
from mnemorank.ranking.stage import Times
from mnemorank.results import Degradation, Ranking, Score

logger = logging.getLogger(__name__)

# Scoring may take all of the time. What follows needs some, too: supersession, diversity, the token budget.
_FINISHING_SECONDS = 0.2


class Reranker:
    """Ranks memories for a query.

        reranker = Reranker()
        for result in reranker.rerank("Where does Ruby work now?", memories, top_k=5):
            print(f"{result.relevance:.2f}", result.text)

    Safe to share between threads and across forks. Pickles and copies by its constructor arguments; a model
    passed as an object must pickle itself, as `Failover` does.

    :param model: `mini` (bundled), a model folder, a Hugging Face Hub id (`org/name`, or `hf:org/name@revision`), the
        address of a remote model, or an object that scores memories (see `Scoring`).
    :param options: the defaults for all calls.
    :param states: for split models, the folder in which prepared memories are kept; see `prepare`.
    :param model_options: for the model's scorer, such as `threads` and `token_budget`.
    """

    def __init__(
        self,
        model: str | Path | Scoring = "mini",
        *,
        options: Options | None = None,
        states: str | Path | None = None,
        **model_options: Any,
    ) -> None:
        if states is not None:
            model_options["states"] = states
        self._arguments = (model, options, model_options)
        self.options = Options() if options is None else _check_options(options)
        self.model = _load_model(model, model_options)

    def __repr__(self) -> str:
        model, options, model_options = self._arguments
        named = {**({} if options is None else {"options": options}), **model_options}
        return f"Reranker({', '.join([repr(model), *(f'{name}={value!r}' for name, value in named.items())])})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _create, (type(self), *self._arguments)

    def rerank(
        self,
        query: str,
        memories: Iterable[MemoryLike],
        *,
        top_k: int | None = None,
        now: When | None = None,
        as_of: When | None = None,
        time_range: tuple[When, When] | None = None,
        instruction: str | None = None,
        deadline_ms: float | None = None,
        explain: bool = False,
        field: str | None = None,
        on_error: OnError = "raise",
        options: Options | None = None,
    ) -> Ranking:
        """Rank the memories, best first.

        :param query: a question or a chat turn. If it is too long for the model, only its end is read, with a warning.
        :param memories: the whole candidate pool: strings, dicts, rows, `Memory` records, LangChain documents, hits of
            vector stores, or `(record, score)` pairs.
        :param top_k: how many results to return, all by default.
        :param now: the present, for recency and for "last week" in a query; the current time by default.
        :param as_of: rank by the state at this date: later memories go last, memories replaced since then count.
        :param time_range: the period that the query is about; memories that hold in it are raised.
        :param instruction: for models that take one.
        :param deadline_ms: stop scoring after this long; memories not scored by then follow in first-stage order.
        :param explain: fill each result's `factors`.
        :param field: the key that holds the text, or a path such as `payload.text`.
        :param on_error: `skip` reports bad dates and numbers as warnings instead of raising.
        :param options: instead of the reranker's own.
        """
        if deadline_ms is not None:
            check_deadline(deadline_ms)
        return self.rerank_within(
            None if deadline_ms is None else Deadline.after_ms(deadline_ms),
            query,
            memories,
            top_k=top_k,
            now=now,
            as_of=as_of,
            time_range=time_range,
            instruction=instruction,
            explain=explain,
            field=field,
            on_error=on_error,
            options=options,
        )

    async def arerank(
        self,
        query: str,
        memories: Iterable[MemoryLike],
        *,
        top_k: int | None = None,
        now: When | None = None,
        as_of: When | None = None,
        time_range: tuple[When, When] | None = None,
        instruction: str | None = None,
        deadline_ms: float | None = None,
        explain: bool = False,
        field: str | None = None,
        on_error: OnError = "raise",
        options: Options | None = None,
    ) -> Ranking:
        """Run `rerank` in a thread, so that the event loop stays free."""
        return await asyncio.to_thread(
            self.rerank,
            query,
            memories,
            top_k=top_k,
            now=now,
            as_of=as_of,
            time_range=time_range,
            instruction=instruction,
            deadline_ms=deadline_ms,
            explain=explain,
            field=field,
            on_error=on_error,
            options=options,
        )

    def rerank_within(
        self,
        deadline: Deadline | None,
        query: str,
        memories: Iterable[MemoryLike],
        *,
        top_k: int | None = None,
        now: When | None = None,
        as_of: When | None = None,
        time_range: tuple[When, When] | None = None,
        instruction: str | None = None,
        explain: bool = False,
        field: str | None = None,
        on_error: OnError = "raise",
        options: Options | None = None,
    ) -> Ranking:
        """Run `rerank` under a deadline that the caller created, and may cancel. For servers."""
        options = self.options if options is None else _check_options(options)
        _check_query(query)
        if top_k is not None:
            check_number("top_k", top_k, 1, whole=True)
        records = as_pool(memories)
        warnings: list[str] = []
        pool = read_memories(records, field=field, on_error=on_error, report=warnings.append)
        warnings += _duplicate_ids(pool)
        times = Times.parse(now, as_of, time_range)

        first_stage = FirstStageRanking.of(query, pool, options.first_stage, deadline=deadline)
        score = partial(self._score, query, instruction=instruction, deadline=deadline, warn=warnings.append)
        scored, degraded = _score_pool(score, pool, first_stage.order[: options.max_scored], deadline)
        if instruction and scored is not None and not _takes_instructions(scored.manifest):
            warnings.append(f"instruction: ignored, the model's template {scored.manifest.template!r} takes none")
        finish_by = None if deadline is None else deadline.but_not_within(_FINISHING_SECONDS)
        pipeline = Pipeline(query, pool, options, times, first_stage, self.model, score, warnings.append, finish_by)
        return pipeline.rank(scored, degraded, top_k, explain, warnings, records)

    def score(
        self,
        query: str,
        memories: Iterable[MemoryLike],
        *,
        instruction: str | None = None,
        field: str | None = None,
    ) -> list[Score]:
        """Return the model's own judgment of each memory, in the given order.

        Unlike `rerank`, this raises `ScorerError` when the model fails: there is no order to fall back on.
        """
        _check_query(query)
        pool = read_memories(memories, field=field)
        scored = self.model.score(query, pool, instruction=instruction)
        relevance = sigmoid(model_odds(scored.raw, scored.manifest))
        return [
            Score(None, None) if math.isnan(raw) else Score(float(chance), float(raw))
            for chance, raw in zip(relevance, scored.raw, strict=True)
        ]

    def prepare(
        self, memories: Iterable[MemoryLike], *, field: str | None = None, on_error: OnError = "raise"
    ) -> Prepared:
        """Compute what a split model reads of memories, so that ranking them is fast for every later query.

        Rankings are the same, prepared or not. What was computed is kept in the folder `states`, for all processes
        that use it; without one, in this process only, up to the option `cache_megabytes`.

        :returns: how many memories were prepared now, and how many before.
        """
        return prepare_with(self.model, read_memories(memories, field=field, on_error=on_error))

    async def aprepare(
        self, memories: Iterable[MemoryLike], *, field: str | None = None, on_error: OnError = "raise"
    ) -> Prepared:
        """Run `prepare` in a thread, so that the event loop stays free."""
        return await asyncio.to_thread(self.prepare, memories, field=field, on_error=on_error)

    def close(self) -> None:
        """Release the model's memory."""
        self.model.close()

    def __enter__(self) -> Reranker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _score(
        self,
        query: str,
        memories: Sequence[Memory],
        *,
        instruction: str | None,
        deadline: Deadline | None,
        warn: Callable[[str], None],
    ) -> Scored:
        scored, read = score_with_truncation(self.model, query, memories, instruction=instruction, deadline=deadline)
        if read is not query:
            warn(f"query: too long for the model, which read only its last {len(read)} of {len(query)} characters")
        return scored


def _load_model(model: str | Path | Scoring, options: dict[str, Any]) -> Scoring:
    if isinstance(model, (str, Path)):
        return Model.load(model, **options)
    if not callable(getattr(model, "score", None)):
        raise InputError(f"expected a model's name, its folder or an object that scores, got {model!r}", field="model")
    for name in options:
        raise InputError("applies only to models that are loaded by name", field=name, code="unknown")
    return model


def _create(
    cls: type[Reranker], model: str | Path | Scoring, options: Options | None, model_options: dict[str, Any]
) -> Reranker:
    return cls(model, options=options, **model_options)


def _score_pool(
    score: Callable[[Sequence[Memory]], Scored],
    pool: Sequence[Memory],
    chosen: Sequence[int],
    deadline: Deadline | None,
) -> tuple[Scored | None, Degradation | None]:
    """Return raw scores in pool order, or None if the model failed: that must not break recall."""
    try:
        scored = score([pool[i] for i in chosen])
    except ScorerError as error:
        logger.warning("reranking degraded to the first-stage order: %s", error)
        return None, Degradation("model_failed", str(error))
    raw = np.full(len(pool), np.nan)
    matched: list[str | None] = [None] * len(pool)
    for position, i in enumerate(chosen):
        # An infinite score is no score either: log-odds and probabilities could not be compared with it.
        if np.isfinite(scored.raw[position]):
            raw[i], matched[i] = scored.raw[position], scored.matched[position]
    missing = sum(bool(np.isnan(raw[i])) and bool(pool[i].text.strip()) for i in chosen)
    degraded = None
    if missing and deadline is not None and deadline.expired:
        degraded = Degradation("deadline", f"{missing} of {len(pool)} memories were not scored before the deadline")
    elif missing:
        degraded = Degradation("incomplete", f"the model returned no score for {missing} of {len(pool)} memories")
    return Scored(raw, matched, scored.manifest, scored.judge), degraded


def _takes_instructions(manifest: Manifest) -> bool:
    """Return whether an instruction reaches the model; what a remote model does with it is not known."""
    return manifest.family == "remote" or templates[manifest.template].instruction is not None


def _check_options(options: object) -> Options:
    if not isinstance(options, Options):
        raise InputError(f"expected Options(...), got {type(options).__name__}", field="options")
    return options


def _check_query(query: object) -> None:
    if not isinstance(query, str):
        raise InputError(f"expected a string, got {type(query).__name__}", field="query")
    if not query.strip():
        raise InputError("is empty", field="query", code="empty")


def check_deadline(deadline_ms: object) -> None:
    is_number = isinstance(deadline_ms, Real) and not isinstance(deadline_ms, bool)
    if not (is_number and deadline_ms > 0):  # type: ignore[operator]
        raise InputError(f"expected a number above 0, got {deadline_ms!r}", field="deadline_ms")


def _duplicate_ids(pool: Sequence[Memory]) -> list[str]:
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for memory in pool:
        if memory.id is not None and memory.id in seen:
            repeated[memory.id] = None
        elif memory.id is not None:
            seen.add(memory.id)
    shown = ", ".join(f"{name!r:.40}" for name in list(repeated)[:3]) + (", …" if len(repeated) > 3 else "")
    return [f"id: {len(repeated)} ids occur more than once ({shown}); identify results by index"] if repeated else []
