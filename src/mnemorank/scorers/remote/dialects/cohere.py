"""Cohere: POST /v2/rerank."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Dialect, RerankRequest, dialects, read_entries


def write(request: RerankRequest) -> dict[str, Any]:
    return {
        "model": request.model,
        "query": request.query,
        "documents": request.documents,
        "top_n": len(request.documents),
        "max_tokens_per_doc": request.max_length,
    }


def read(response: Any) -> list[tuple[int, float]]:
    return read_entries(response["results"], "relevance_score")


dialects.add(
    Dialect(
        "cohere",
        "Cohere's rerank API, v2, and servers that speak it",
        "/v2/rerank",
        write,
        read,
        key_variables=("COHERE_API_KEY", "CO_API_KEY"),
        url="https://api.cohere.com",
        model="rerank-v3.5",
        max_length=4096,
    )
)
