"""The stages after scoring: calibrate, fuse, supersede, select."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from mnemorank._internal.arrays import Floats, log_sigmoid, sigmoid
from mnemorank.artifact.manifest import FirstStage, Manifest
from mnemorank.errors import InputError, MnemorankError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.memory.moment import now as present
from mnemorank.model.model import Scored, Scoring
from mnemorank.options import FirstStageSource, Options
from mnemorank.ranking.calibration import model_odds
from mnemorank.ranking.factors import evidence, factors, trust_in_words
from mnemorank.ranking.selection import (
    memory_similarity,
    mmr,
    newer_first_among_ties,
    replace_one,
    within_budget,
)
from mnemorank.ranking.stages.entity_links import linked
from mnemorank.ranking.stages.query_dates import time_evidence
from mnemorank.ranking.stages.same_day import company
from mnemorank.ranking.supersession import Supersession, asks_for_the_past, demote, drop, find_superseded, not_begun
from mnemorank.results import Ranking, Result
from mnemorank.text.chat import memories_bm25

When = Moment | str | Any
_LOOKED_AT = 200
_TINY = np.finfo(np.float64).tiny
_MOST_DIVERSE = 100
# Of so many of the best those that are as long as a paragraph, in characters, are looked at again.
_LEADERS, _PARAGRAPH = 5, 500


@dataclass(frozen=True, slots=True)
class Times:
    """The dates of a request."""

    now: Moment
    as_of: Moment | None
    asked: tuple[Moment, Moment] | None

    @classmethod
    def read(cls, now: When | None, as_of: When | None, time_range: tuple[When, When] | None) -> Times:
        def moment(name: str, value: When) -> Moment:
            try:
                return Moment.parse(value)
            except InputError as error:
                raise InputError(f"{error}", field=name) from None

        asked = None
        if time_range is not None:
            if not isinstance(time_range, Sequence) or isinstance(time_range, str) or len(time_range) != 2:
                raise InputError(f"expected two dates, got {time_range!r:.60}", field="time_range")
            asked = moment("time_range", time_range[0]), moment("time_range", time_range[1])
            if asked[1].is_before(asked[0]):
                raise InputError(f"{asked[1]} is before {asked[0]}", field="time_range")
        return cls(
            now=present() if now is None else moment("now", now),
            as_of=None if as_of is None else moment("as_of", as_of),
            asked=asked,
        )


@dataclass(frozen=True, slots=True)
class FirstRanking:
    """What the first stage says of a pool.

    :param scores: of each memory, NaN where there is none.
    :param order: best first, those without a score last; as given where the caller gave no scores.
    :param by_words: the scores are our own BM25's, not the caller's.
    """

    scores: Floats
    order: list[int]
    by_words: bool

    @classmethod
    def of(cls, query: str, pool: Sequence[Memory], source: FirstStageSource) -> FirstRanking:
        scores = given = _given_scores(pool)
        by_words = source == "bm25" or (source == "auto" and not np.isfinite(given).any())
        if by_words:
            scores = memories_bm25(query, pool)
        elif source == "none":
            scores = np.full(len(pool), np.nan)
        return cls(scores, _best_first(scores if source == "bm25" else given), by_words)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of one request, from raw scores to results."""

    query: str
    pool: Sequence[Memory]
    options: Options
    times: Times
    first_stage: FirstRanking
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
            order, told = self._unscored(top_k)
            results = self._results(order, None, None, {}, Supersession(), explain)
            return Ranking(results, degraded=degraded, warnings=(*warnings, *told), records=records)
        manifest = scored.manifest
        odds, parts = self._odds(scored, manifest)
        relevance = sigmoid(odds)
        multipliers = factors(self.pool, self.options.fusion, self.times.now, self.times.asked)
        by_others = parts["links"] + parts["occasion"] + parts["asked_time"]
        factor = np.prod(list(multipliers.values()), axis=0)
        score = sigmoid(odds + by_others) * factor
        exact = log_sigmoid(odds + by_others) + np.log(np.maximum(factor, _TINY))
        order = self._order(score, exact)
        superseded = self._superseded(order)
        order = self._demoted(self._diversified(order, score, superseded, top_k), superseded, relevance)
        known = [relevance[i] for i in order if i not in superseded.future]
        order = self._short_list(order, relevance, top_k)
        best = np.nanmax(known) if np.isfinite(known).any() else None
        return Ranking(
            self._results(order, scored, (relevance, score), {**parts, **multipliers}, superseded, explain),
            abstained=degraded is None and self._abstains(best, manifest),
            degraded=degraded,
            scored_by=manifest.name if np.isfinite(relevance).any() else None,
            warnings=warnings,
            records=records,
        )

    def _unscored(self, top_k: int | None) -> tuple[list[int], tuple[str, ...]]:
        """The first stage's order, memories of the future last, within the budget: what needs no scores; and what is
        to be told of it."""
        future = not_begun(self.pool, self.times.as_of)
        order = sorted(self.first_stage.order, key=lambda i: i in future)[:top_k]
        try:
            return self._affordable(order), ()
        except MnemorankError as error:
            return order, (f"token_budget: not kept, the tokens could not be counted: {error}",)

    def _abstains(self, best: float | None, manifest: Manifest) -> bool:
        below = self.options.abstain_below
        if below is None:
            below = manifest.abstain_below
        elif below == 0:
            return False
        return best is None or bool(best < below)

    def _superseded(self, order: Sequence[int]) -> Supersession:
        """Looked for among the best, where it matters: likeness is compared pair by pair."""
        if not self.options.supersede:
            return Supersession(future=not_begun(self.pool, self.times.as_of))
        return find_superseded(self.pool, self.times.as_of, order[:_LOOKED_AT], self.times.now)

    def _odds(self, scored: Scored, manifest: Manifest) -> tuple[Floats, dict[str, Floats]]:
        """Log-odds of relevance of each memory by itself, and all that speaks for it, what other memories tell too."""
        by_model = model_odds(scored.raw, manifest)
        closer = self._closer(scored, by_model)
        first_stage = self._first_stage(scored)
        odds = by_model + closer + first_stage
        witnesses = self._witnesses(odds)
        return odds, {
            "model": sigmoid(by_model),
            "closer": closer,
            "first_stage": first_stage,
            "links": self._links(scored, odds, witnesses),
            "occasion": self._occasion(scored, odds, witnesses),
            "asked_time": self._asked_time(scored, witnesses),
        }

    def leaders(self, scored: Scored) -> list[int]:
        """Positions of those of the best memories so far that are worth a closer look: a short text is read well
        enough as it is. None where the look would not count."""
        if not self._closer_weight(scored):
            return []
        odds = model_odds(scored.raw, scored.manifest) + self._first_stage(scored)
        best: dict[tuple[str, float], int] = {}  # what is read of one of several copies counts for all
        for i in sorted(self._witnesses(odds), key=lambda i: -odds[i]):
            best.setdefault((self.pool[i].text, round(float(scored.raw[i]), 3)), i)
        leaders = islice(best.values(), _LEADERS)
        return [i for i in leaders if _is_paragraph(self.pool[i], scored.passage(i, self.pool[i]))]

    def _closer_weight(self, scored: Scored) -> float:
        return _chosen(self.options.fusion.closer_weight, scored.manifest.closer_weight)

    def _closer(self, scored: Scored, odds: Floats) -> Floats:
        """What a closer look adds to the log-odds of the memories that got one; 0 elsewhere."""
        if scored.closer is None:
            return np.zeros(len(odds))
        seen = model_odds(scored.closer, scored.manifest)
        return np.where(np.isfinite(seen), self._closer_weight(scored) * (seen - odds), 0.0)

    def _first_stage(self, scored: Scored) -> Floats:
        """What the first stage is worth to each memory."""
        stated, fusion = scored.manifest.first_stage, self.options.fusion
        weight = fusion.first_stage_weight
        if weight is None:
            weight = first_stage_weight(stated, self.query, scored, self.first_stage.by_words)
        return evidence(self.first_stage.scores, weight, fusion.first_stage_method or stated.method)

    def _links(self, scored: Scored, odds: Floats, witnesses: Sequence[int]) -> Floats:
        """What links are worth, looked for among the best; 0 elsewhere."""
        weight = self.options.fusion.link_weight
        if weight is None:
            # A turn of a chat names much in passing that leads nowhere.
            trust = trust_in_words(self.query, scored.manifest.first_stage.long_query)
            weight = scored.manifest.link_weight * trust
        result = np.zeros(len(self.pool))
        if weight and witnesses:
            best = sorted(witnesses, key=lambda i: -odds[i])[:_LOOKED_AT]
            texts = [self.pool[i].text for i in best]
            passages = [scored.passage(i, self.pool[i]) for i in best]
            result[best] = linked(self.query, texts, passages, odds[best], weight)
        return result

    def _occasion(self, scored: Scored, odds: Floats, witnesses: Sequence[int]) -> Floats:
        """What good candidates of the same day are worth to a memory; 0 where it was not scored."""
        weight = _chosen(self.options.fusion.occasion_weight, scored.manifest.occasion_weight)
        result = np.zeros(len(self.pool))
        if weight and witnesses:
            result[witnesses] = weight * company([self.pool[i] for i in witnesses], odds[witnesses])
        return result

    def _asked_time(self, scored: Scored, witnesses: Sequence[int]) -> Floats:
        """What the time that the query names is worth to a memory; 0 where it was not scored or the caller told it."""
        weight = _chosen(self.options.fusion.asked_time_weight, scored.manifest.asked_time_weight)
        result = np.zeros(len(self.pool))
        if weight and witnesses and self.times.asked is None:
            seen_from = self.times.as_of or self.times.now
            result[witnesses] = time_evidence(self.query, [self.pool[i] for i in witnesses], seen_from, weight)
        return result

    def _witnesses(self, odds: Floats) -> list[int]:
        """Positions of the memories that may speak for others: those scored that had begun at the asked date."""
        future = not_begun(self.pool, self.times.as_of)
        return [i for i, known in enumerate(np.isfinite(odds)) if known and i not in future]

    def _order(self, score: Floats, exact: Floats) -> list[int]:
        """Scored memories by score, then unscored ones in first-stage order, then empty texts.

        :param exact: logarithms of the scores, by which they are told apart.
        """
        has_score = np.isfinite(score)
        by_score = sorted((i for i in self.first_stage.order if has_score[i]), key=lambda i: -exact[i])
        margin = self.options.selection.tie_margin
        by_score = newer_first_among_ties(by_score, score if margin else exact, self.pool, margin)
        unscored = [i for i in self.first_stage.order if not has_score[i]]
        return by_score + sorted(unscored, key=lambda i: not self.pool[i].text.strip())

    def _diversified(self, order: list[int], score: Floats, superseded: Supersession, top_k: int | None) -> list[int]:
        selection = self.options.selection
        wanted = len(order) if top_k is None else top_k
        known = np.nan_to_num(score, nan=-1.0)
        if selection.replace_only is not None:
            return replace_one(order, self.first_stage.order, known, wanted, selection.replace_only)
        if selection.diversity not in (None, 1):
            # Of a tie each counts as its best, or a newer one that was put first would fall back.
            known[order] = np.maximum.accumulate(known[order][::-1])[::-1]
            similarity = memory_similarity(self.pool)
            # What is going to be left out or put last must not push away what is like it.
            apart = superseded.future | (superseded.stale.keys() if self._drops else set())
            compared = [i for i in order if np.isfinite(score[i]) and i not in apart]
            picked = mmr(compared, known, similarity, selection.diversity, min(len(compared), _MOST_DIVERSE))
            return picked + [i for i in order if not np.isfinite(score[i]) or i in apart]
        return order

    @property
    def _is_about_the_past(self) -> bool:
        return self.times.as_of is None and asks_for_the_past(self.query)

    @property
    def _drops(self) -> bool:
        return self.options.supersede == "drop" and not self._is_about_the_past

    def _demoted(self, order: list[int], superseded: Supersession, relevance: Floats) -> list[int]:
        if self._is_about_the_past:
            return order
        if self._drops:
            return drop(order, superseded)
        return demote(order, superseded, [float(r) if math.isfinite(r) else 0.0 for r in relevance])

    def _short_list(self, order: list[int], relevance: Floats, top_k: int | None) -> list[int]:
        selection = self.options.selection
        if selection.floor is not None and np.isfinite(relevance).any():
            # What was not scored in time is no better known than what is under the floor, beside what was.
            order = [i for i in order if relevance[i] >= selection.floor]
        return self._affordable(order[:top_k])

    def _affordable(self, order: list[int]) -> list[int]:
        budget = self.options.selection.token_budget
        if budget is None:
            return order
        counts = self.model.count_tokens([self.pool[i] for i in order])
        return within_budget(order, dict(zip(order, counts, strict=True)), budget)

    def _results(
        self,
        order: Sequence[int],
        scored: Scored | None,
        scores: tuple[Floats, Floats] | None,
        parts: Mapping[str, Floats],
        superseded: Supersession,
        explain: bool,
    ) -> tuple[Result, ...]:
        place = {i: rank for rank, i in enumerate(self.first_stage.order)}
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
                    stale_because=superseded.because.get(i),
                    passage=scored.matched[i] if scored is not None else None,
                    factors={name: float(values[i]) for name, values in parts.items()} if explain and has_score else {},
                )
            )
        return tuple(results)


def _chosen(asked: float | None, stated: float) -> float:
    """A weight that the call sets, else the artifact's."""
    return stated if asked is None else asked


def _is_paragraph(memory: Memory, passage: str) -> bool:
    """Whether excerpts of what was read are worth reading: not of a long context, which would go with each of them."""
    return len(passage) >= _PARAGRAPH and passage in memory.text and len(memory.context or "") < _PARAGRAPH


def _share_in_part(scored: Scored) -> float:
    """The share of the scored memories of which only windows were read."""
    found = [window is not None for window, raw in zip(scored.matched, scored.raw, strict=True) if np.isfinite(raw)]
    return sum(found) / len(found) if found else 0.0


def _given_scores(pool: Sequence[Memory]) -> Floats:
    return np.array([np.nan if m.first_stage_score is None else m.first_stage_score for m in pool], dtype=np.float64)


def _best_first(scores: Floats) -> list[int]:
    known = [-math.inf if math.isnan(score) else float(score) for score in scores]
    return sorted(range(len(known)), key=lambda i: -known[i])


def first_stage_weight(stated: FirstStage, query: str, scored: Scored, by_words: bool) -> float:
    """What the artifact says the first stage is worth for this request."""
    weight = stated.weight_for(_share_in_part(scored))
    return weight * trust_in_words(query, stated.long_query) if by_words else weight
