"""Graphiti: a cross-encoder for its searches, and reranking of edges with their dates."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from graphiti_core.cross_encoder.client import CrossEncoderClient
from graphiti_core.edges import EntityEdge

from mnemorank.integrations.adapter import Adapter
from mnemorank.reranker import Reranker


class MnemorankClient(CrossEncoderClient):
    """Ranks the facts of searches with a `cross_encoder` recipe.

    Graphiti passes facts without their dates, and equal facts as one. `rerank_edges` has neither limit:

        client = MnemorankClient()
        edges = await Graphiti(..., cross_encoder=client).search(query, num_results=100)
        edges = await client.rerank_edges(query, edges, top_k=5)

    :param arguments: further arguments of `Reranker.rerank`, such as `options` and `deadline_ms`.
    """

    def __init__(self, model: str | Reranker = "mini", **arguments: Any) -> None:
        self._adapter = Adapter(model, **arguments)

    async def rank(self, query: str, passages: list[str]) -> list[tuple[str, float]]:
        """Return the passages with scores, best first. If the model fails, the order stays, with scores of 1/rank."""
        ranking = await asyncio.to_thread(self._adapter.rank_scored, query, passages)
        return [(passages[index], score) for index, score in ranking]

    async def rerank_edges(self, query: str, edges: Sequence[EntityEdge], top_k: int | None = None) -> list[EntityEdge]:
        """Return the edges, best first, by their facts and the dates when they were true."""
        return [edges[ranked.index] for ranked in await self._adapter.arank(query, edges, top_k)]
