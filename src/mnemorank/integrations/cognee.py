"""cognee: the retriever of chunks, reranked."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from cognee.modules.retrieval.chunks_retriever import ChunksRetriever
from cognee.modules.retrieval.register_retriever import use_retriever
from cognee.modules.search.types import SearchType

from mnemorank.integrations.adapter import Adapter
from mnemorank.reranker import Reranker


class MnemorankChunksRetriever(ChunksRetriever):
    """Retrieves many chunks and returns the best. `register` makes it the retriever of `SearchType.CHUNKS`.

    Dates and keys are read from a document's `external_metadata`. The `score` of a chunk is a distance in cognee: after
    reranking it is 1 minus the ranking score, and increases along the list.
    """

    adapter: ClassVar[Adapter] = Adapter()
    pool: ClassVar[int] = 100

    def __init__(
        self,
        top_k: int | None = 5,
        node_name: list[str] | None = None,
        node_name_filter_operator: str = "OR",
        **_: Any,
    ) -> None:
        """Create the retriever of one search, with the arguments that cognee passes."""
        super().__init__(max(self.pool, top_k or 0), node_name, node_name_filter_operator)
        self.limit = top_k

    async def get_retrieved_objects(self, query: str) -> Any:
        chunks = await super().get_retrieved_objects(query)
        ranking = await self.adapter.arank(query, [_record(chunk) for chunk in chunks], self.limit)
        return [
            chunks[ranked.index]
            if ranked.score is None
            else chunks[ranked.index].model_copy(update={"score": 1 - ranked.score})
            for ranked in ranking
        ]


def register(model: str | Reranker = "mini", *, pool: int = 100, key: str | None = None, **arguments: Any) -> None:
    """Rerank the chunks of `cognee.search(query_type=SearchType.CHUNKS)`.

    :param pool: how many chunks to retrieve before reranking.
    :param key: the field of `external_metadata` that says what a document is about: the newest of equal ones replaces
        the others.
    :param arguments: further arguments of `Reranker.rerank`, such as `options` and `deadline_ms`.
    """
    settings = {"adapter": Adapter(model, key=key, **arguments), "pool": pool}
    use_retriever(SearchType.CHUNKS, type("RegisteredChunksRetriever", (MnemorankChunksRetriever,), settings))


def _record(chunk: Any) -> dict[str, Any]:
    payload = chunk.payload or {}
    external = payload.get("external_metadata")
    return {
        "id": str(chunk.id),
        "content": payload.get("text") or "",
        "metadata": json.loads(external) if isinstance(external, str) else external or {},
        "distance": chunk.score,
    }
