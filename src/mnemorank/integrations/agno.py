"""agno: a reranker for knowledge bases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agno.knowledge.document import Document
from agno.knowledge.reranker.base import Reranker as AgnoReranker
from pydantic import Field, PrivateAttr

from mnemorank.integrations.adapter import Adapter, Ranked
from mnemorank.reranker import Reranker


class MnemorankReranker(AgnoReranker):
    """Reranks documents by their content, dates and keys.

    The documents returned are copies with a `reranking_score` that decreases along the list. Their `meta_data` has
    `relevance` (a calibrated probability), and `stale: True` if a newer document replaces them.

    Unlike agno's other rerankers it asks the vector database for 100 candidates.
    """

    model: str | Reranker = "mini"
    top_n: int | None = None
    key: str | None = None
    """The field of `meta_data` that says what a document is about: the newest of equal ones replaces the others."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `mnemorank.Reranker.rerank`, such as `options` and `deadline_ms`."""
    candidate_multiplier: int = Field(default=100, ge=1)

    _adapter: Adapter = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._adapter = Adapter(self.model, key=self.key, **self.arguments)

    def rerank(self, query: str, documents: list[Document], limit: int | None = None) -> list[Document]:
        return _reordered(documents, self._adapter.rank(query, documents, self._count(limit)))

    async def arerank(self, query: str, documents: list[Document], limit: int | None = None) -> list[Document]:
        return _reordered(documents, await self._adapter.arank(query, documents, self._count(limit)))

    def _count(self, limit: int | None) -> int | None:
        return min((count for count in (self.top_n, limit) if count), default=None)


def _reordered(documents: Sequence[Document], ranking: Sequence[Ranked]) -> list[Document]:
    return [_reranked(documents[ranked.index], ranked) for ranked in ranking]


def _reranked(document: Document, ranked: Ranked) -> Document:
    if ranked.score is None:
        return document
    return replace(document, meta_data={**document.meta_data, **ranked.fields}, reranking_score=ranked.score)
