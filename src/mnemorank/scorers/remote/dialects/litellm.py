"""LiteLLM's proxy: POST /rerank in Cohere's shape, whichever provider is behind it."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Ask, Dialect, dialects, indexed


def write(ask: Ask) -> dict[str, Any]:
    body = {"model": ask.model, "query": ask.query, "documents": ask.documents, "top_n": len(ask.documents)}
    return {key: value for key, value in body.items() if value is not None}


def read(answer: Any) -> list[tuple[int, float]]:
    return indexed(answer["results"], "relevance_score")


dialects.add(
    Dialect(
        "litellm",
        "LiteLLM's proxy and other gateways in Cohere's shape",
        "/rerank",
        write,
        read,
        key_variables=("LITELLM_API_KEY",),
        max_length=1024,
    )
)
