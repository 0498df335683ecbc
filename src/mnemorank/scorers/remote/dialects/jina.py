"""Jina: POST /v1/rerank."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Dialect, RerankRequest, dialects, read_entries


def write(request: RerankRequest) -> dict[str, Any]:
    return {
        "model": request.model,
        "query": request.query,
        "documents": request.documents,
        "top_n": len(request.documents),
        "return_documents": False,
    }


def read(response: Any) -> list[tuple[int, float]]:
    return read_entries(response["results"], "relevance_score")


dialects.add(
    Dialect(
        "jina",
        "Jina's rerank API and servers that speak it (infinity, LocalAI)",
        "/v1/rerank",
        write,
        read,
        key_variables=("JINA_API_KEY",),
        url="https://api.jina.ai",
        model="jina-reranker-v2-base-multilingual",
        max_length=1024,
    )
)
