"""The ranking pipeline: from the model's raw scores to a ranking.

Scores become calibrated log-odds; the first stage, passage re-scoring and the stages add to them; factors multiply the
resulting probability; supersession and selection turn the order into the short list. Nothing is computed twice:
`RankingContext` carries what the stages need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mnemorank._internal.arrays import Floats, log_sigmoid, sigmoid
from mnemorank._internal.deadline import Deadline
from mnemorank.artifact.calibration import model_odds
from mnemorank.artifact.manifest import Manifest
from mnemorank.errors import MnemorankError
from mnemorank.memory.memory import Memory
from mnemorank.model.judge import Judge
from mnemorank.model.model import Scored, Scoring
from mnemorank.options import Options
from mnemorank.ranking.factors import factors
from mnemorank.ranking.first_stage import FirstStageRanking
from mnemorank.ranking.selection import MemorySimilarity, mmr, newer_first_among_ties, replace_one, within_budget
from mnemorank.ranking.stage import RankingContext, Times
from mnemorank.ranking.stages import STAGES
from mnemorank.ranking.stages.rescoring import Rescoring
from mnemorank.ranking.supersession import (
    Supersession,
    demote,
    dropped,
    find_superseded,
    judge_pairs,
    not_begun,
)
from mnemorank.results import Degradation, Ranking, Result

_RESCORING = Rescoring()
_MAX_COMPARED = 200
# A model reads pairs of the best to judge which replaces which, but not of those that hardly answer the query:
# relevance below this share of the best. They would take most of the pairs.
_MAX_JUDGED = 16
_MIN_JUDGED_SHARE = 0.05
_MAX_DIVERSIFIED = 100
# Tokens are counted in chunks until the budget is spent, since the texts may be long.
_COUNTED_AT_ONCE = 16
_COUNTED_CHARACTERS = 32_768
_TINY = np.finfo(np.float64).tiny
# Relative gap below the predecessor for items that supersession or selection moved; large enough to survive float32.
_STEP = 1e-6
# Scores that round to 0 could not be distinguished by such a gap.
_MIN_SCORE = 1e-30


@dataclass(frozen=True, slots=True)
class PoolScores:
    """The scores of each memory before selection.

    :param relevance: calibrated probability by the model alone.
    :param evidence: probability by the model, passage re-scoring and the first stage, without the other stages.
    :param score: the ranking score.
    :param log_score: its logarithm, which separates scores that round to the same number.
    :param parts: what the score is made of, by name.
    """

    relevance: Floats
    evidence: Floats
    score: Floats
    log_score: Floats
    parts: Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of one request.

    :param rescore: scores further texts with the same model and query.
    :param warn: adds a warning to the ranking.
    :param deadline: of what follows the scoring.
    """

    query: str
    pool: Sequence[Memory]
    options: Options
    times: Times
    first_stage: FirstStageRanking
    model: Scoring
    rescore: Callable[[Sequence[Memory]], Scored]
    warn: Callable[[str], None]
    deadline: Deadline | None = None

    @property
    def _is_late(self) -> bool:
        return self.deadline is not None and self.deadline.expired

    def rank(
        self,
        scored: Scored | None,
        degraded: Degradation | None,
        top_k: int | None,
        explain: bool,
        warnings: Sequence[str],
        records: tuple[Any, ...],
    ) -> Ranking:
        """Return the ranking.

        :param scored: the model's scores; None if the model failed, which gives the first-stage order.
        :param warnings: a live list, read after the stages have run, because they may add to it.
        """
        if scored is None:
            order = self._unscored_order(top_k)
            results = self._results(order, None, None, Supersession(), explain)
            return Ranking(results, degraded=degraded, warnings=_unique(warnings), records=records)
        scores = self._score_pool(scored, is_complete=degraded is None)
        order = self._order(scores)
        superseded = self._superseded(order, scored, scores.evidence)
        keeps_outdated = self._keeps_outdated(scored.judge)
        left_out = dropped(superseded) if self.options.supersession == "drop" and not keeps_outdated else set()
        order = self._diversified(order, scores.score, superseded.future | left_out, top_k)
        if not keeps_outdated:
            order = self._with_supersession(order, superseded, scores.evidence, left_out)
        best = _best(scores.relevance[i] for i in order if i not in superseded.future)
        order = self._short_list(order, scores, top_k)
        return Ranking(
            self._results(order, scored, scores, superseded, explain),
            abstained=degraded is None and self._abstains(best, scored.manifest),
            degraded=degraded,
            scored_by=scored.manifest.name if np.isfinite(scores.relevance).any() else None,
            warnings=_unique(warnings),
            records=records,
        )

    def _score_pool(self, scored: Scored, *, is_complete: bool) -> PoolScores:
        by_model = model_odds(scored.raw, scored.manifest)
        first_stage = self.first_stage.evidence(self.query, scored, self.options)
        context = RankingContext(
            self.query,
            self.pool,
            self.options,
            self.times,
            self.first_stage,
            scored,
            by_model + first_stage,
            self.rescore,
            self.warn,
        )
        rescoring = _RESCORING.adjust(context) if is_complete else np.zeros(len(self.pool))
        log_odds = by_model + rescoring + first_stage
        context = replace(context, log_odds=log_odds)
        adjustments = {stage.name: stage.adjust(context) for stage in STAGES}
        multipliers = factors(self.pool, self.options, self.times.now, self.times.time_range)
        factor = np.prod(list(multipliers.values()), axis=0)
        total = log_odds + sum(adjustments.values())
        return PoolScores(
            relevance=sigmoid(by_model),
            evidence=sigmoid(log_odds),
            score=sigmoid(total) * factor,
            log_score=log_sigmoid(total) + np.log(np.maximum(factor, _TINY)),
            parts={
                "model": by_model,
                _RESCORING.name: rescoring,
                "first_stage": first_stage,
                **adjustments,
                **multipliers,
            },
        )

    def _unscored_order(self, top_k: int | None) -> list[int]:
        """Return the first-stage order within the token budget, memories that start after `as_of` last."""
        future = not_begun(self.pool, self.times.as_of)
        return self._within_budget(sorted(self.first_stage.order, key=lambda i: i in future)[:top_k])

    def _order(self, scores: PoolScores) -> list[int]:
        """Return scored memories by score, then unscored ones in first-stage order, then empty texts."""
        has_score = np.isfinite(scores.score)
        by_score = sorted((i for i in self.first_stage.order if has_score[i]), key=lambda i: -scores.log_score[i])
        margin = self.options.tie_margin
        compared = scores.score if margin else scores.log_score
        by_score = newer_first_among_ties(by_score, compared, self.pool, margin)
        unscored = [i for i in self.first_stage.order if not has_score[i]]
        return by_score + sorted(unscored, key=lambda i: not self.pool[i].text.strip())

    def _superseded(self, order: Sequence[int], scored: Scored, evidence: Floats) -> Supersession:
        """Find outdated memories among the best only, because memories are compared pair by pair."""
        if self.options.supersession == "off":
            return Supersession(future=not_begun(self.pool, self.times.as_of))
        judged: set[tuple[int, int]] = set()
        if self.options.supersede_similar and scored.judge is not None and not self._is_late:
            best = [i for i in order if np.isfinite(scored.raw[i])][:_MAX_JUDGED]
            least = _MIN_JUDGED_SHARE * max((evidence[i] for i in best), default=0.0)
            among = [i for i in best if evidence[i] >= least]
            try:
                judged = judge_pairs(self.pool, among, scored.judge, scored.manifest.replaced_above)
            except MnemorankError as error:
                self.warn(f"supersede_similar: ignored, the model failed: {error}")
        compared = order[:_MAX_COMPARED]
        superseded = find_superseded(
            self.pool, self.times.as_of, compared, self.times.now, judged, deadline=self.deadline
        )
        if self._is_late:
            self.warn("supersession: not all memories were compared before the deadline")
        return superseded

    def _keeps_outdated(self, judge: Judge | None) -> bool:
        """Return whether the query is about the past, so that an outdated memory may be the right answer."""
        if not self.options.detect_past_questions or self.times.as_of is not None or judge is None:
            return False
        try:
            return judge.asks_about_past(self.query)
        except MnemorankError as error:
            self.warn(f"detect_past_questions: ignored, the model failed: {error}")
            return False

    def _diversified(self, order: list[int], score: Floats, apart: Set[int], top_k: int | None) -> list[int]:
        """Apply `diversity`, or another way to choose.

        :param apart: memories that will be dropped or put last; they must not push away those similar to them.
        """
        options = self.options
        known = np.nan_to_num(score, nan=-1.0)
        if options.replace_margin is not None:
            wanted = len(order) if top_k is None else top_k
            return replace_one(order, self.first_stage.order, known, wanted, options.replace_margin)
        if options.diversity in (None, 1):
            return order
        # Every member of a tie gets the tie's best score; otherwise a newer memory that was moved up would fall back.
        known[order] = np.maximum.accumulate(known[order][::-1])[::-1]
        compared = [i for i in order if np.isfinite(score[i]) and i not in apart]
        similarity = MemorySimilarity([self.pool[i] for i in compared], deadline=self.deadline)
        balance = options.diversity or 0.0
        picked = mmr(compared, known, similarity, balance, _MAX_DIVERSIFIED, deadline=self.deadline)
        if self._is_late:
            self.warn("diversity: not all memories were compared before the deadline")
        return picked + [i for i in order if not np.isfinite(score[i]) or i in apart]

    def _with_supersession(
        self, order: list[int], superseded: Supersession, evidence: Floats, left_out: Set[int]
    ) -> list[int]:
        chances = [float(chance) if math.isfinite(chance) else 0.0 for chance in evidence]
        # Dropped last, so that what a dropped memory replaces still ranks below the successor of both.
        return [i for i in demote(order, superseded, chances) if i not in left_out]

    def _short_list(self, order: list[int], scores: PoolScores, top_k: int | None) -> list[int]:
        """Apply the floor, `top_k` and the token budget; unscored memories come last."""
        floor = self.options.floor
        if floor is not None and np.isfinite(scores.relevance).any():
            order = [i for i in order if scores.relevance[i] >= floor]
        order = self._within_budget(order[:top_k])
        return sorted(order, key=lambda i: not np.isfinite(scores.score[i]))

    def _within_budget(self, order: list[int]) -> list[int]:
        budget = self.options.token_budget
        if budget is None:
            return order
        costs: dict[int, int] = {}
        total = 0
        for chunk in self._counted_together(order):
            if self._is_late:
                self.warn("token_budget: after the deadline, a token was assumed for every byte")
                costs.update({i: len(self.pool[i].text.encode()) for i in order[len(costs) :]})
                break
            try:
                counts = self.model.count_tokens([self.pool[i] for i in chunk])
            except MnemorankError as error:
                self.warn(f"token_budget: ignored, the tokens could not be counted: {error}")
                return order
            costs.update(zip(chunk, counts, strict=True))
            total += sum(counts)
            if total > budget:
                break
        return within_budget(list(costs), costs, budget)

    def _counted_together(self, order: Sequence[int]) -> Iterator[list[int]]:
        chunk: list[int] = []
        characters = 0
        for i in order:
            chunk.append(i)
            characters += len(self.pool[i].text)
            if len(chunk) == _COUNTED_AT_ONCE or characters >= _COUNTED_CHARACTERS:
                yield chunk
                chunk, characters = [], 0
        if chunk:
            yield chunk

    def _abstains(self, best: float | None, manifest: Manifest) -> bool:
        threshold = self.options.abstain_below
        if threshold == 0:
            return False
        if threshold is None:
            threshold = manifest.abstain_below
        return best is None or best < threshold

    def _results(
        self,
        order: Sequence[int],
        scored: Scored | None,
        scores: PoolScores | None,
        superseded: Supersession,
        explain: bool,
    ) -> tuple[Result, ...]:
        first_stage_rank = {i: rank for rank, i in enumerate(self.first_stage.order, 1)}
        values = np.empty(0) if scores is None else _lifted(order, scores.score, superseded)
        results: list[Result] = []
        previous = math.inf
        for rank, i in enumerate(order, 1):
            numbers: dict[str, Any] = {"relevance": None, "score": None, "raw_score": None}
            if scored is not None and scores is not None and np.isfinite(scored.raw[i]):
                previous = _below(float(values[i]), previous)
                numbers = {
                    "relevance": float(scores.relevance[i]),
                    "score": previous,
                    "raw_score": float(scored.raw[i]),
                }
                if explain:
                    numbers["factors"] = {name: float(part[i]) for name, part in scores.parts.items()}
            results.append(
                Result(
                    index=i,
                    memory=self.pool[i],
                    rank=rank,
                    rank_change=first_stage_rank[i] - rank,
                    stale=i in superseded.stale,
                    superseded_by=superseded.stale.get(i),
                    stale_because=superseded.because.get(i),
                    passage=scored.matched[i] if scored is not None else None,
                    **numbers,
                )
            )
        return tuple(results)


def _lifted(order: Sequence[int], scores: Floats, superseded: Supersession) -> Floats:
    """Return the scores, where a current memory has at least those of the outdated ones whose place it took."""
    lifted = scores.copy()
    current = None
    for i in order:
        if i not in superseded.stale:
            current = i
        elif current is not None and current in superseded.successors.get(i, ()):
            lifted[current] = np.fmax(lifted[current], scores[i])
    return lifted


def _below(score: float, previous: float) -> float:
    """Return the score, or a number just below the previous one if it is not smaller, also as float32. Both are > 0."""
    score = max(score, _MIN_SCORE)
    return score if np.float32(score) < np.float32(previous) else previous * (1 - _STEP)


def _best(relevance: Any) -> float | None:
    return max((float(chance) for chance in relevance if math.isfinite(chance)), default=None)


def _unique(warnings: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(warnings))
