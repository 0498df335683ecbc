"""Reranker: the pipeline from candidates to results."""

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
from mnemorank.artifact.manifest import Manifest
from mnemorank.artifact.templates import templates
from mnemorank.errors import InputError, ScorerError
from mnemorank.memory.memory import Memory, MemoryLike, OnError, as_pool, read_memories
from mnemorank.model.model import Model, Scored, Scoring, score_by_the_end
from mnemorank.options import Options
from mnemorank.ranking.calibration import model_odds
from mnemorank.ranking.pipeline import FirstRanking, Pipeline, Times, When
from mnemorank.ranking.stages.rescoring import look_closer
from mnemorank.results import Ranking, Score

logger = logging.getLogger(__name__)


class Reranker:
    """Ranks memories for a query.

    >>> reranker = Reranker()
    >>> for result in reranker.rerank("Where does Ruby work now?", memories, top_k=5):
    ...     print(f"{result.relevance:.2f}", result.text)

    :param model: `mini` (bundled), a model folder, `hf:org/name`, or anything that scores memories (see `Scoring`).
    :param model_options: for the model's scorer, such as `threads` and `token_budget`.
    """

    def __init__(
        self, model: str | Path | Scoring = "mini", *, options: Options | None = None, **model_options: Any
    ) -> None:
        self.model: Scoring = Model.load(model, **model_options) if isinstance(model, (str, Path)) else model
        self.options = options or Options()

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

        :param query: a question or a turn of a chat. One too long for the model is read by its end, with a warning.
        :param memories: the wide pool: strings, dicts, rows, Memory records, LangChain Documents, hits of vector
            stores, or `(record, score)`; pass all candidates, not the top few.
        :param top_k: how many results to return, all by default.
        :param now: the present, for recency and for times such as "last week" in the query; the clock's by default.
        :param as_of: ask for the state at this date: later memories rank last, those replaced since then count.
        :param time_range: the period the query is about; memories that hold in it are raised.
        :param instruction: for models that take one.
        :param deadline_ms: stop scoring after this long; what was not scored follows in first-stage order.
        :param explain: fill each result's `factors`.
        :param field: the key that holds the text, or a path such as `payload.text`.
        :param on_error: `skip` reports bad dates and numbers as warnings instead of raising.
        """
        options = self.options if options is None else options
        if not isinstance(options, Options):
            raise InputError(f"expected Options(…), got {type(options).__name__}", field="options")
        _check_request(query, top_k, deadline_ms)
        records = as_pool(memories)
        warnings: list[str] = []
        pool = read_memories(records, field=field, on_error=on_error, report=warnings.append)
        warnings += _duplicate_ids(pool)
        times = Times.read(now, as_of, time_range)

        first_stage = FirstRanking.of(query, pool, options.first_stage)
        deadline = None if deadline_ms is None else Deadline.after_ms(deadline_ms)
        ask = partial(self._ask, query, instruction=instruction, deadline=deadline, report=warnings.append)
        scored, degraded = self._score(ask, pool, first_stage.order[: options.limit], deadline)
        if instruction and scored is not None and not _takes_instructions(scored.manifest):
            warnings.append(f"instruction: not read, the model's template {scored.manifest.template!r} has none")
        stage = Pipeline(query, pool, options, times, first_stage, self.model)
        if scored is not None and degraded is None:
            scored = look_closer(query, ask, pool, stage.leaders(scored), scored, warnings.append)
        return stage.rank(scored, degraded, top_k, explain, tuple(dict.fromkeys(warnings)), records)

    async def arerank(self, query: str, memories: Iterable[MemoryLike], **arguments: Any) -> Ranking:
        """`rerank` in a thread, so that the event loop stays free. Takes the same arguments."""
        return await asyncio.to_thread(partial(self.rerank, query, memories, **arguments))

    def score(
        self,
        query: str,
        memories: Iterable[MemoryLike],
        *,
        instruction: str | None = None,
        field: str | None = None,
    ) -> list[Score]:
        """The model's own judgement of each memory, in the given order: no first stage, no factors, no neighbours.

        Unlike `rerank`, this raises ScorerError when the model fails: there is no order to fall back on.
        """
        _check_request(query, None, None)
        pool = read_memories(memories, field=field)
        scored = self.model.score(query, pool, instruction=instruction)
        relevance = sigmoid(model_odds(scored.raw, scored.manifest))
        return [
            Score(None, None) if math.isnan(raw) else Score(float(chance), float(raw))
            for chance, raw in zip(relevance, scored.raw, strict=True)
        ]

    def close(self) -> None:
        self.model.close()

    def __enter__(self) -> Reranker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(
        self,
        query: str,
        memories: Sequence[Memory],
        *,
        instruction: str | None,
        deadline: Deadline | None,
        report: Callable[[str], None],
    ) -> Scored:
        scored, read = score_by_the_end(self.model, query, memories, instruction=instruction, deadline=deadline)
        if read is not query:
            report(f"query: too long for the model, which read only its last {len(read)} of {len(query)} characters")
        return scored

    def _score(
        self,
        ask: Callable[[Sequence[Memory]], Scored],
        pool: Sequence[Memory],
        chosen: Sequence[int],
        deadline: Deadline | None,
    ) -> tuple[Scored | None, str | None]:
        """Raw scores in pool order, or None and the reason why there are none: a failing model must not fail recall."""
        try:
            scored = ask([pool[i] for i in chosen])
        except ScorerError as error:
            logger.warning("reranking degraded to the first-stage order: %s", error)
            return None, str(error)
        raw = np.full(len(pool), np.nan)
        matched: list[str | None] = [None] * len(pool)
        for position, i in enumerate(chosen):
            raw[i], matched[i] = scored.raw[position], scored.matched[position]
        reached = np.isfinite(scored.raw)
        missed = [i for position, i in enumerate(chosen) if not reached[position] and pool[i].text.strip()]
        degraded = None
        if missed and deadline is None:
            degraded = f"the model gave no number for {len(missed)} of {len(pool)} memories"
        elif missed:
            degraded = f"deadline: {len(missed)} of {len(pool)} memories were not scored in time"
        return Scored(raw, matched, scored.manifest), degraded


def _takes_instructions(manifest: Manifest) -> bool:
    """Whether an instruction reaches the model; what a remote one does with it cannot be known."""
    return manifest.family == "remote" or templates[manifest.template].instruction is not None


def _check_request(query: object, top_k: object, deadline_ms: object) -> None:
    if not isinstance(query, str):
        raise InputError(f"expected a string, got {type(query).__name__}", field="query")
    if not query.strip():
        raise InputError("is empty", field="query")
    if top_k is not None:
        check_number("top_k", top_k, 1, whole=True)
    is_number = isinstance(deadline_ms, Real) and not isinstance(deadline_ms, bool)
    if deadline_ms is not None and not (is_number and deadline_ms > 0):  # type: ignore[operator]
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
    return [f"id: {len(repeated)} ids occur more than once ({shown}); tell results apart by index"] if repeated else []
