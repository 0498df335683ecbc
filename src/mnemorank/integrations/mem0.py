"""mem0: a reranker for its configuration, and a search that reranks a wide pool."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from mem0.configs.rerankers.base import BaseRerankerConfig
from mem0.reranker.base import BaseReranker
from mem0.utils.factory import RerankerFactory
from pydantic import Field

from mnemorank.integrations.adapter import Adapter


class MnemorankRerankerConfig(BaseRerankerConfig):
    """The `config` of the provider `mnemorank`.

    :param key: the metadata field that says what a memory is about: the newest of equal ones replaces the others.
    :param arguments: further arguments of `Reranker.rerank`, such as `options` and `deadline_ms`.
    """

    model: str = "mini"
    key: str | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)


class MnemorankReranker(BaseReranker):
    """Reranks search results by their text, scores and dates."""

    def __init__(self, config: MnemorankRerankerConfig | dict[str, Any] | None = None) -> None:
        self.config = config if isinstance(config, BaseRerankerConfig) else MnemorankRerankerConfig(**(config or {}))
        self._adapter = Adapter(self.config.model, key=self.config.key, **self.config.arguments)

    def rerank(self, query: str, documents: list[dict[str, Any]], top_k: int | None = None) -> list[dict[str, Any]]:
        """Return copies of the memories, best first, with `rerank_score`, `relevance` and, if replaced, `stale`."""
        ranking = self._adapter.rank(query, documents, top_k or self.config.top_k)
        return [{**documents[ranked.index], "rerank_score": ranked.score, **ranked.fields} for ranked in ranking]


def register() -> None:
    """Make `{"reranker": {"provider": "mnemorank", "config": {}}}` work in mem0's configuration."""
    path = f"{MnemorankReranker.__module__}.{MnemorankReranker.__name__}"
    RerankerFactory.provider_to_class["mnemorank"] = (path, MnemorankRerankerConfig)


def search(memory: Any, query: str, top_k: int = 5, *, pool: int = 100, **arguments: Any) -> dict[str, Any]:
    """Search like `memory.search(query, top_k=top_k, rerank=True)`, but rerank before the results are cut to `top_k`.

    :param memory: a `Memory` or a `MemoryClient`. If it has a mnemorank reranker of its own, that one is used.
    :param pool: how many memories to rerank.
    :param arguments: of `memory.search`, such as `filters`.
    """
    found = memory.search(query, top_k=max(pool, top_k), **arguments)
    return {**found, "results": _reranker_of(memory).rerank(query, found["results"], top_k)}


async def asearch(memory: Any, query: str, top_k: int = 5, *, pool: int = 100, **arguments: Any) -> dict[str, Any]:
    """Search an `AsyncMemory` as `search` does, without blocking the event loop."""
    found = await memory.search(query, top_k=max(pool, top_k), **arguments)
    results = await asyncio.to_thread(_reranker_of(memory).rerank, query, found["results"], top_k)
    return {**found, "results": results}


def _reranker_of(memory: Any) -> MnemorankReranker:
    reranker = getattr(memory, "reranker", None)
    return reranker if isinstance(reranker, MnemorankReranker) else _default_reranker()


@cache
def _default_reranker() -> MnemorankReranker:
    return MnemorankReranker()
