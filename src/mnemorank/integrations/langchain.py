"""LangChain: a document compressor for `ContextualCompressionRetriever`, and a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import Callbacks
from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import BaseDocumentCompressor, Document
from pydantic import ConfigDict, Field, PrivateAttr

from mnemorank.integrations.adapter import Adapter, Ranked
from mnemorank.reranker import Reranker


class MnemorankRerank(BaseDocumentCompressor):
    """Reranks documents by their text, dates, keys and retriever scores.

    The documents returned are copies with `relevance_score` in their metadata, which decreases along the list,
    `relevance` (a calibrated probability), and `stale: True` if a newer document replaces them.
    """

    model: str | Reranker = "mini"
    top_n: int | None = 3
    key: str | None = None
    """The metadata field that says what a document is about: the newest of equal ones replaces the others."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of `Reranker.rerank`, such as `options` and `deadline_ms`."""

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid")
    _adapter: Adapter = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        self._adapter = Adapter(self.model, key=self.key, **self.arguments)

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        return _reordered(documents, self._adapter.rank(query, documents, self.top_n))

    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> Sequence[Document]:
        return _reordered(documents, await self._adapter.arank(query, documents, self.top_n))


class MnemorankCrossEncoder(BaseCrossEncoder):
    """Scores pairs of texts by the model alone, for `CrossEncoderReranker`. `MnemorankRerank` also reads dates."""

    def __init__(self, model: str | Reranker = "mini") -> None:
        self._adapter = Adapter(model)

    def score(self, text_pairs: list[tuple[str, str]]) -> list[float]:
        return self._adapter.score_pairs(text_pairs)


def _reordered(documents: Sequence[Document], ranking: Sequence[Ranked]) -> list[Document]:
    return [
        documents[ranked.index]
        if ranked.score is None
        else documents[ranked.index].model_copy(
            update={
                "metadata": {
                    **documents[ranked.index].metadata,
                    "relevance_score": ranked.score,
                    **ranked.fields,
                }
            }
        )
        for ranked in ranking
    ]
