"""Jina: POST /v1/rerank."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Ask, Dialect, dialects, indexed


def write(ask: Ask) -> dict[str, Any]:
    return {
        "model": ask.model,
        "query": ask.query,
        "documents": ask.documents,
        "top_n": len(ask.documents),
        "return_documents": False,
    }


def read(answer: Any) -> list[tuple[int, float]]:
    return indexed(answer["results"], "relevance_score")


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
