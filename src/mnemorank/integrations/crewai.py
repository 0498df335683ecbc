"""CrewAI: a memory whose recall is reranked."""

from __future__ import annotations

import asyncio
from typing import Any

from crewai.memory.types import MemoryMatch
from crewai.memory.unified_memory import Memory
from pydantic import Field, PrivateAttr

from mnemorank.integrations.adapter import Adapter
from mnemorank.reranker import Reranker


class RerankedMemory(Memory):
    """CrewAI's memory, which recalls many records and returns the best: `Crew(memory=RerankedMemory(...))`.

    The score of a match decreases along the list. `stale` is added to the reasons of a match that a newer record
    replaces.
    """

    reranker: str | Reranker = Field(default="mini", description="A model as in mnemorank.Reranker, or a Reranker.")
    pool: int = Field(default=100, description="Number of records to recall before reranking.")
    key: str | None = Field(default=None, description="Metadata field: the newest of equal ones replaces the others.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Further arguments of Reranker.rerank.")

    _adapter: Adapter = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._adapter = Adapter(self.reranker, key=self.key, **self.arguments)

    def recall(
        self,
        query: str,
        scope: str | None = None,
        categories: list[str] | None = None,
        limit: int = 10,
        *arguments: Any,
        **named: Any,
    ) -> list[MemoryMatch]:
        """Recall as CrewAI does, then rerank and keep `limit` matches."""
        matches = super().recall(query, scope, categories, max(self.pool, limit), *arguments, **named)
        return [
            matches[ranked.index]
            if ranked.score is None
            else matches[ranked.index].model_copy(
                update={
                    "score": ranked.score,
                    "match_reasons": [*matches[ranked.index].match_reasons, *(["stale"] if ranked.stale else [])],
                }
            )
            for ranked in self._adapter.rank(query, matches, limit)
        ]

    async def arecall(self, query: str, *arguments: Any, **named: Any) -> list[MemoryMatch]:
        """Run `recall` in a thread, so that the event loop stays free."""
        return await asyncio.to_thread(self.recall, query, *arguments, **named)
