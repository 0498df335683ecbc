"""Cohere: POST /v2/rerank."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Ask, Dialect, dialects, indexed


def write(ask: Ask) -> dict[str, Any]:
    return {
        "model": ask.model,
        "query": ask.query,
        "documents": ask.documents,
        "top_n": len(ask.documents),
        "max_tokens_per_doc": ask.max_length,
    }


def read(answer: Any) -> list[tuple[int, float]]:
    return indexed(answer["results"], "relevance_score")


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
