"""What the adapters share: rank a framework's objects, and return their positions with scores that keep the order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mnemorank.cross_encoder import CrossEncoder
from mnemorank.memory.memory import Memory, MemoryLike, read_memories
from mnemorank.options import Options
from mnemorank.reranker import Reranker
from mnemorank.results import Ranking, Result

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ranked:
    """An object's place in a ranking.

    :param index: its position in the pool.
    :param score: strictly decreasing along the ranking, so that sorting by it keeps the order; None if the model scored
        nothing and the order is the first stage's.
    :param relevance: the calibrated probability that it answers the query; None if the model did not score it.
    :param stale: a newer memory of the pool replaces it.
    """

    index: int
    score: float | None = None
    relevance: float | None = None
    stale: bool = False

    @property
    def fields(self) -> dict[str, Any]:
        """What adapters add to an object's metadata besides its score."""
        return {"relevance": self.relevance, **({"stale": True} if self.stale else {})}


class Adapter:
    """Ranks the objects of a framework for a query.

    Problems in the data, such as a bad date, are logged and not raised: they are the store's, not the caller's.

    :param model: as in `Reranker`, loaded by the first call; or a `Reranker`.
    :param key: the name of a metadata field. Memories with the same value are about the same thing, and the newest
        replaces the others.
    :param arguments: further arguments of `Reranker.rerank`, such as `options` and `deadline_ms`.
    """

    def __init__(self, model: str | Path | Reranker = "mini", *, key: str | None = None, **arguments: Any) -> None:
        self.model = model
        self.key = key
        if isinstance(arguments.get("options"), Mapping):  # from a framework's configuration file
            arguments["options"] = Options(**arguments["options"])
        self.arguments = arguments

    @cached_property
    def reranker(self) -> Reranker:
        return self.model if isinstance(self.model, Reranker) else Reranker(self.model)

    def rank(self, query: str, records: Iterable[MemoryLike], top_k: int | None = None) -> list[Ranked]:
        """Rank all the records, then keep `top_k`. Without a query or memories the order stays."""
        records = list(records)
        if not query.strip() or not records:
            return [Ranked(index) for index in range(len(records))][:top_k]
        arguments = {"on_error": "skip", **self.arguments}
        reading = {name: arguments.pop(name) for name in ("field", "on_error") if name in arguments}
        warnings: list[str] = []
        pool = read_memories(records, **reading, report=warnings.append)
        if self.key is not None:
            pool = [_with_key(memory, self.key) for memory in pool]
        ranking = self.reranker.rerank(query, pool, top_k=top_k, **arguments)
        for warning in (*warnings, *ranking.warnings):
            logger.warning("%s", warning)
        return _ranked(ranking)

    def rank_scored(
        self, query: str, records: Iterable[MemoryLike], top_k: int | None = None
    ) -> list[tuple[int, float]]:
        """Return positions and scores, for frameworks that must have a number.

        If the model scored nothing, the scores are 1/rank, and the log says so.
        """
        ranking = self.rank(query, records, top_k)
        return [(each.index, 1 / rank if each.score is None else each.score) for rank, each in enumerate(ranking, 1)]

    async def arank(self, query: str, records: Iterable[MemoryLike], top_k: int | None = None) -> list[Ranked]:
        """Run `rank` in a thread, so that the event loop stays free."""
        return await asyncio.to_thread(self.rank, query, records, top_k)

    def score_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the relevance of each pair of a query and a text, by the model alone. Raises `ScorerError`."""
        return [float(score) for score in CrossEncoder(self.reranker).predict(pairs)]


def _with_key(memory: Memory, name: str) -> Memory:
    # A field called `key` is renamed when it is read from another store's record, where it may be an id or a title.
    value = memory.metadata.get("store_key" if name == "key" else name)
    return memory if value is None else replace(memory, metadata={**memory.metadata, "key": value})


def _ranked(ranking: Ranking) -> list[Ranked]:
    scored = [result for result in ranking if result.score is not None]
    unscored = ranking[len(scored) :]  # they come last
    lowest = scored[-1].score if scored else None
    return [_place(result, result.score) for result in scored] + [
        # Below the last score, and above 0.
        _place(result, None if lowest is None else lowest * (1 - number / (len(unscored) + 1)))
        for number, result in enumerate(unscored, 1)
    ]


def _place(result: Result, score: float | None) -> Ranked:
    return Ranked(result.index, score, result.relevance, result.stale)
