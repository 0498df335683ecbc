"""LlamaIndex: a node postprocessor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llama_index.core.bridge.pydantic import Field, PrivateAttr
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.events.rerank import ReRankEndEvent, ReRankStartEvent
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from mnemorank.integrations.adapter import Adapter, Ranked
from mnemorank.reranker import Reranker

dispatcher = get_dispatcher(__name__)


class MnemorankPostprocessor(BaseNodePostprocessor):
    """Reranks nodes by their text, dates, keys and retriever scores.

    The nodes returned are copies whose `score` decreases along the list. Their metadata has `relevance` (a calibrated
    probability), `retrieval_score`, and `stale: True` if a newer node replaces them.
    """

    model: str | Reranker = Field(default="mini", description="A model as in Reranker, or a Reranker.")
    top_n: int = Field(default=5, description="Number of nodes to return.")
    key: str | None = Field(default=None, description="Metadata field: the newest of equal ones replaces the others.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Further arguments of Reranker.rerank.")

    _adapter: Adapter = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        super().model_post_init(context)
        self._adapter = Adapter(self.model, key=self.key, **self.arguments)

    @classmethod
    def class_name(cls) -> str:
        return "MnemorankPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = self._start(nodes, query_bundle)
        return _finish(nodes, self._adapter.rank(query, _records(nodes), self.top_n))

    async def _apostprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        query = self._start(nodes, query_bundle)
        return _finish(nodes, await self._adapter.arank(query, _records(nodes), self.top_n))

    def _start(self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None) -> str:
        if query_bundle is None:
            raise ValueError("Missing query bundle in extra info.")  # the words of LlamaIndex's own rerankers
        dispatcher.event(
            ReRankStartEvent(query=query_bundle, nodes=nodes, top_n=self.top_n, model_name=str(self.model))
        )
        return str(query_bundle.query_str)


def _records(nodes: Sequence[NodeWithScore]) -> list[dict[str, Any]]:
    return [
        {
            "id": node.node.node_id,
            "content": node.node.get_content(metadata_mode=MetadataMode.NONE),
            "metadata": node.node.metadata,
            "score": node.score,
        }
        for node in nodes
    ]


def _finish(nodes: Sequence[NodeWithScore], ranking: Sequence[Ranked]) -> list[NodeWithScore]:
    results = [_reranked(nodes[ranked.index], ranked) for ranked in ranking]
    dispatcher.event(ReRankEndEvent(nodes=results))
    return results


def _reranked(node: NodeWithScore, ranked: Ranked) -> NodeWithScore:
    if ranked.score is None:
        return node
    added = {"relevance": ranked.relevance, "retrieval_score": node.score}
    changes = {
        "metadata": {**node.node.metadata, **added, **({"stale": True} if ranked.stale else {})},
        # Numbers for programs: neither a language model nor an embedding should read them.
        "excluded_llm_metadata_keys": [*node.node.excluded_llm_metadata_keys, *added],
        "excluded_embed_metadata_keys": [*node.node.excluded_embed_metadata_keys, *added],
    }
    return NodeWithScore(node=node.node.model_copy(update=changes), score=ranked.score)
