"""LiteLLM's proxy: POST /rerank in Cohere's format, for any provider behind it."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Dialect, RerankRequest, dialects, read_entries


def write(request: RerankRequest) -> dict[str, Any]:
    body = {
        "model": request.model,
        "query": request.query,
        "documents": request.documents,
        "top_n": len(request.documents),
    }
    return {key: value for key, value in body.items() if value is not None}


def read(response: Any) -> list[tuple[int, float]]:
    return read_entries(response["results"], "relevance_score")


dialects.add(
    Dialect(
        "litellm",
        "LiteLLM's proxy and other gateways with Cohere's format",
        "/rerank",
        write,
        read,
        key_variables=("LITELLM_API_KEY",),
        max_length=1024,
    )
)
