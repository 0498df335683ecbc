"""Haystack: a ranker. It is here because Haystack loads saved pipelines only from its own namespaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict

from mnemorank.integrations.adapter import Adapter, Ranked
from mnemorank.options import Options

__all__ = ["MnemorankRanker"]


@component
class MnemorankRanker:
    """Reranks documents by their content, dates, keys and retriever scores.

    The documents returned are copies whose `score` decreases along the list. Their `meta` has `relevance` (a calibrated
    probability), `retrieval_score`, and `stale: True` if a newer document replaces them. Documents without a
    text come last.
    """

    def __init__(
        self,
        model: str = "mini",
        top_k: int | None = 10,
        key: str | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """
        Create the ranker. The model is loaded by `warm_up` or the first run.

        :param model: as in `mnemorank.Reranker`.
        :param top_k: number of documents to return; None for all.
        :param key: a field of `meta`. The newest of documents with the same value replaces the others.
        :param arguments: further arguments of `Reranker.rerank`, such as `options` and `deadline_ms`.
        """
        _check_top_k(top_k)
        self.model = model
        self.top_k = top_k
        self.key = key
        self.arguments = dict(arguments or {})
        self._adapter = Adapter(model, key=key, **self.arguments)

    def warm_up(self) -> None:
        """Load the model."""
        self._adapter.reranker  # noqa: B018

    def to_dict(self) -> dict[str, Any]:
        """Return the component as data, for saved pipelines."""
        arguments = {
            name: asdict(value) if isinstance(value, Options) else value for name, value in self.arguments.items()
        }
        return default_to_dict(self, model=self.model, top_k=self.top_k, key=self.key, arguments=arguments)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MnemorankRanker:
        """Create the component from what `to_dict` returned."""
        return default_from_dict(cls, data)  # type: ignore[no-any-return]

    @component.output_types(documents=list[Document])
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, list[Document]]:
        """
        Rank the documents. Duplicates by id are removed; with an empty query the documents are returned as they are.

        :param top_k: instead of the component's own.
        """
        documents, records = _prepare(documents, top_k)
        if not query.strip():
            return {"documents": documents}
        ranking = self._adapter.rank(query, records, self.top_k if top_k is None else top_k)
        return {"documents": _reordered(documents, ranking)}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        """
        Rank the documents in a thread, so that the event loop stays free.

        :param top_k: instead of the component's own.
        """
        documents, records = _prepare(documents, top_k)
        if not query.strip():
            return {"documents": documents}
        ranking = await self._adapter.arank(query, records, self.top_k if top_k is None else top_k)
        return {"documents": _reordered(documents, ranking)}


def _prepare(documents: Sequence[Document], top_k: int | None) -> tuple[list[Document], list[dict[str, Any]]]:
    _check_top_k(top_k)
    best: dict[str, Document] = {}
    for document in documents:
        known = best.get(document.id)
        if known is None or (document.score is not None and (known.score is None or document.score > known.score)):
            best[document.id] = document
    unique = list(best.values())
    return unique, [{"id": d.id, "content": d.content or "", "meta": d.meta, "score": d.score} for d in unique]


def _reordered(documents: Sequence[Document], ranking: Sequence[Ranked]) -> list[Document]:
    return [_reranked(documents[ranked.index], ranked) for ranked in ranking]


def _reranked(document: Document, ranked: Ranked) -> Document:
    if ranked.score is None:
        return document
    meta = {**document.meta, **ranked.fields, "retrieval_score": document.score}
    return replace(document, meta=meta, score=ranked.score)


def _check_top_k(top_k: int | None) -> None:
    if top_k is not None and top_k <= 0:
        raise ValueError(f"top_k must be > 0, but got {top_k}")  # the words of Haystack's own rankers
