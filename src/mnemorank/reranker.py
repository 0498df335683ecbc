"""Reranker: the pipeline from candidates to results."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mnemorank.artefact import FirstStage, Manifest
from mnemorank.errors import InputError, ScorerError
from mnemorank.memory import Memory, OnError, read_memories
from mnemorank.model import Model, Scored, Scoring
from mnemorank.moment import Moment
from mnemorank.moment import now as present
from mnemorank.ranking.calibrate import log_odds, sigmoid
from mnemorank.ranking.fuse import Fusion, blend, factors, standardised
from mnemorank.ranking.lexical import bm25
from mnemorank.ranking.select import (
    Selection,
    memory_similarity,
    mmr,
    newer_first_among_ties,
    replace_one,
    within_budget,
)
from mnemorank.ranking.supersede import Supersession, asks_for_the_past, demote, find_superseded
from mnemorank.results import Ranking, Result, Score

logger = logging.getLogger(__name__)

Floats = NDArray[np.float64]
When = Moment | str | Any
FirstStageSource = Literal["auto", "given", "bm25", "none"]


@dataclass(frozen=True, slots=True)
class Options:
    """How to rank, for one call or as a reranker's defaults.

    :param first_stage: where the first-stage evidence comes from: the memories' own scores (`given`), BM25 over the
        pool (`bm25`), the scores if there are any and BM25 otherwise (`auto`), or `none`. How much it counts is the
        artefact's or `fusion.first_stage_weight`.
    :param supersede: flag outdated memories and rank them below their successor, unless the query asks for the past.
    :param limit: score at most this many, the first stage's best; the rest follow in first-stage order, unscored.
    """

    fusion: Fusion = Fusion()
    selection: Selection = Selection()
    first_stage: FirstStageSource = "auto"
    supersede: bool = True
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.first_stage not in ("auto", "given", "bm25", "none"):
            raise InputError(f"first_stage: expected auto, given, bm25 or none, got {self.first_stage!r}")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"limit: expected a whole number from 1, got {self.limit!r}")


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
        memories: Iterable[str | Mapping[str, Any] | Memory],
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

        :param memories: the wide pool, as strings, dicts or Memory records; pass all candidates, not the top few.
        :param top_k: how many results to return, all by default.
        :param now: the present, for recency; the clock's by default.
        :param as_of: ask for the state at this date: later memories rank last, those replaced since then count.
        :param time_range: the period the query is about; memories that hold in it are raised.
        :param instruction: for models that take one.
        :param deadline_ms: stop scoring after this long; what was not scored follows in first-stage order.
        :param explain: fill each result's `factors`.
        :param field: the dict key that holds the text.
        :param on_error: `skip` reports bad dates and numbers as warnings instead of raising.
        """
        started = time.monotonic()
        options = options or self.options
        _check_request(query, top_k, deadline_ms)
        records = tuple(memories) if not isinstance(memories, (str, Mapping)) else memories
        warnings: list[str] = []
        pool = read_memories(records, field=field, on_error=on_error, report=warnings.append)
        warnings += _duplicate_ids(pool)
        moments = _Moments.read(now, as_of, time_range)

        evidence = _first_stage(query, pool, options.first_stage)
        first_order = _first_stage_order(pool)
        deadline = None if deadline_ms is None else started + deadline_ms / 1000
        scored, degraded = self._score(query, pool, first_order, options.limit, instruction, deadline)
        stage = _Ranker(query, pool, options, moments, evidence, first_order, self.model)
        return stage.rank(scored, degraded, top_k, explain, tuple(warnings), tuple(records))

    async def arerank(
        self, query: str, memories: Iterable[str | Mapping[str, Any] | Memory], **arguments: Any
    ) -> Ranking:
        """`rerank` in a thread, so that the event loop stays free. Takes the same arguments."""
        return await asyncio.to_thread(partial(self.rerank, query, memories, **arguments))

    def score(
        self,
        query: str,
        memories: Iterable[str | Mapping[str, Any] | Memory],
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
        manifest = scored.manifest
        relevance = sigmoid(log_odds(scored.raw, manifest.score_kind, manifest.calibration))
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

    def _score(
        self,
        query: str,
        pool: Sequence[Memory],
        first_order: Sequence[int],
        limit: int | None,
        instruction: str | None,
        deadline: float | None,
    ) -> tuple[Scored | None, str | None]:
        """Raw scores in pool order, or None and the reason why there are none: a failing model must not fail recall."""
        chosen = list(first_order[:limit])
        try:
            scored = self.model.score(query, [pool[i] for i in chosen], instruction=instruction, deadline=deadline)
        except ScorerError as error:
            logger.warning("reranking degraded to the first-stage order: %s", error)
            return None, str(error)
        raw = np.full(len(pool), np.nan)
        matched: list[str | None] = [None] * len(pool)
        for position, i in enumerate(chosen):
            raw[i], matched[i] = scored.raw[position], scored.matched[position]
        reached = np.isfinite(scored.raw)
        missed = [i for position, i in enumerate(chosen) if not reached[position] and pool[i].text.strip()]
        degraded = f"deadline: {len(missed)} of {len(pool)} memories were not scored in time" if missed else None
        return Scored(raw, matched, scored.manifest), degraded


@dataclass(frozen=True, slots=True)
class _Moments:
    now: Moment
    as_of: Moment | None
    asked: tuple[Moment, Moment] | None

    @classmethod
    def read(cls, now: When | None, as_of: When | None, time_range: tuple[When, When] | None) -> _Moments:
        def moment(name: str, value: When) -> Moment:
            try:
                return Moment.parse(value)
            except InputError as error:
                raise InputError(f"{name}: {error}") from None

        asked = None
        if time_range is not None:
            if not isinstance(time_range, Sequence) or isinstance(time_range, str) or len(time_range) != 2:
                raise InputError(f"time_range: expected two dates, got {time_range!r:.60}")
            asked = moment("time_range", time_range[0]), moment("time_range", time_range[1])
            if asked[1].is_before(asked[0]):
                raise InputError(f"time_range: {asked[1]} is before {asked[0]}")
        return cls(
            now=present() if now is None else moment("now", now),
            as_of=None if as_of is None else moment("as_of", as_of),
            asked=asked,
        )


@dataclass(frozen=True, slots=True)
class _Ranker:
    """The stages after scoring, for one request."""

    query: str
    pool: Sequence[Memory]
    options: Options
    moments: _Moments
    evidence: Floats
    first_order: Sequence[int]
    model: Scoring

    def rank(
        self,
        scored: Scored | None,
        degraded: str | None,
        top_k: int | None,
        explain: bool,
        warnings: tuple[str, ...],
        records: tuple[Any, ...],
    ) -> Ranking:
        if scored is None:
            order = list(self.first_order[:top_k])
            results = self._results(order, None, None, {}, Supersession(), explain)
            return Ranking(results, degraded=degraded, warnings=warnings, records=records)
        manifest = scored.manifest
        relevance, parts = self._relevance(scored, manifest)
        multipliers = factors(self.pool, self.options.fusion, self.moments.now, self.moments.asked)
        score = relevance * np.prod(list(multipliers.values()), axis=0)
        superseded = find_superseded(self.pool, self.moments.as_of) if self._supersedes else Supersession()
        order = self._select(self._order(score, superseded), relevance, score, top_k)
        best = np.nanmax(relevance) if np.isfinite(relevance).any() else None
        return Ranking(
            self._results(order, scored, (relevance, score), {**parts, **multipliers}, superseded, explain),
            abstained=best is None or bool(best < manifest.abstain_below),
            degraded=degraded,
            scored_by=manifest.name,
            warnings=warnings,
            records=records,
        )

    @property
    def _supersedes(self) -> bool:
        return self.options.supersede or self.moments.as_of is not None

    def _relevance(self, scored: Scored, manifest: Manifest) -> tuple[Floats, dict[str, Floats]]:
        model_odds = log_odds(scored.raw, manifest.score_kind, manifest.calibration)
        stated = manifest.first_stage
        fusion = self.options.fusion
        stage = FirstStage(
            stated.weight if fusion.first_stage_weight is None else fusion.first_stage_weight,
            fusion.first_stage_method or stated.method,
        )
        odds = blend(model_odds, self.evidence, stage.weight, stage.method)
        parts = {
            "model": sigmoid(model_odds),
            "first_stage": stage.weight * standardised(self.evidence, stage.method),
        }
        return sigmoid(odds), parts

    def _order(self, score: Floats, superseded: Supersession) -> list[int]:
        """Scored memories by score, then unscored ones in first-stage order, then empty texts."""
        has_score = np.isfinite(score)
        by_score = sorted((i for i in self.first_order if has_score[i]), key=lambda i: -score[i])
        by_score = newer_first_among_ties(by_score, score, self.pool, self.options.selection.tie_margin)
        unscored = [i for i in self.first_order if not has_score[i]]
        order = by_score + sorted(unscored, key=lambda i: not self.pool[i].text.strip())
        if self.moments.as_of is None and asks_for_the_past(self.query):
            return order
        return demote(order, superseded, [float(s) if math.isfinite(s) else 0.0 for s in score])

    def _select(self, order: list[int], relevance: Floats, score: Floats, top_k: int | None) -> list[int]:
        selection = self.options.selection
        wanted = len(order) if top_k is None else top_k
        known = np.nan_to_num(score, nan=-1.0)
        if selection.replace_only is not None:
            order = replace_one(order, self.first_order, known, wanted, selection.replace_only)
        if selection.diversity is not None:
            order = mmr(order, known, memory_similarity(self.pool), selection.diversity, wanted)
        if selection.floor is not None:
            order = [i for i in order if not relevance[i] < selection.floor]
        if selection.token_budget is not None:
            counts = self.model.count_tokens(self.pool)
            order = within_budget(order, counts, selection.token_budget)
        return order[:wanted]

    def _results(
        self,
        order: Sequence[int],
        scored: Scored | None,
        scores: tuple[Floats, Floats] | None,
        parts: Mapping[str, Floats],
        superseded: Supersession,
        explain: bool,
    ) -> tuple[Result, ...]:
        place = {i: rank for rank, i in enumerate(self.first_order)}
        results = []
        for rank, i in enumerate(order):
            raw = float(scored.raw[i]) if scored is not None and np.isfinite(scored.raw[i]) else None
            has_score = raw is not None and scores is not None
            results.append(
                Result(
                    index=i,
                    memory=self.pool[i],
                    rank=rank,
                    relevance=float(scores[0][i]) if has_score and scores else None,
                    score=float(scores[1][i]) if has_score and scores else None,
                    raw_score=raw,
                    rank_change=place[i] - rank,
                    stale=i in superseded.stale,
                    superseded_by=superseded.stale.get(i),
                    passage=scored.matched[i] if scored is not None else None,
                    factors={name: float(values[i]) for name, values in parts.items()} if explain and has_score else {},
                )
            )
        return tuple(results)


def _check_request(query: object, top_k: object, deadline_ms: object) -> None:
    if not isinstance(query, str):
        raise InputError(f"query: expected a string, got {type(query).__name__}")
    if not query.strip():
        raise InputError("query: is empty")
    if top_k is not None and (not isinstance(top_k, int) or isinstance(top_k, bool) or top_k < 1):
        raise InputError(f"top_k: expected a whole number from 1, got {top_k!r}")
    if deadline_ms is not None and (not isinstance(deadline_ms, (int, float)) or not deadline_ms > 0):
        raise InputError(f"deadline_ms: expected a number above 0, got {deadline_ms!r}")


def _duplicate_ids(pool: Sequence[Memory]) -> list[str]:
    seen: set[str] = set()
    repeated: dict[str, None] = {}
    for memory in pool:
        if memory.id is not None and memory.id in seen:
            repeated[memory.id] = None
        elif memory.id is not None:
            seen.add(memory.id)
    shown = ", ".join(list(repeated)[:3]) + (", …" if len(repeated) > 3 else "")
    return [f"id: {len(repeated)} ids occur more than once ({shown}); tell results apart by index"] if repeated else []


def _given_scores(pool: Sequence[Memory]) -> Floats:
    return np.array([np.nan if m.first_stage_score is None else m.first_stage_score for m in pool], dtype=np.float64)


def _first_stage(query: str, pool: Sequence[Memory], source: FirstStageSource) -> Floats:
    given = _given_scores(pool)
    if source == "none":
        return np.full(len(pool), np.nan)
    if source == "given" or (source == "auto" and np.isfinite(given).any()):
        return given
    return bm25(query, [memory.text for memory in pool])


def _first_stage_order(pool: Sequence[Memory]) -> list[int]:
    """By the given scores, best first, those without one last; as given where there are no scores."""
    scores = [-math.inf if m.first_stage_score is None else m.first_stage_score for m in pool]
    return sorted(range(len(pool)), key=lambda i: -scores[i])
