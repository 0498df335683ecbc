"""Voyage: POST /v1/rerank with `top_k`, answered with `data`."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Dialect, RerankRequest, dialects, read_entries


def write(request: RerankRequest) -> dict[str, Any]:
    return {
        "model": request.model,
        "query": request.query,
        "documents": request.documents,
        "top_k": len(request.documents),
        "truncation": True,
    }


def read(response: Any) -> list[tuple[int, float]]:
    return read_entries(response["data"], "relevance_score")


dialects.add(
    Dialect(
        "voyage",
        "Voyage's rerank API",
        "/v1/rerank",
        write,
        read,
        key_variables=("VOYAGE_API_KEY",),
        url="https://api.voyageai.com",
        model="rerank-2.5",
        max_length=4096,
    )
)
