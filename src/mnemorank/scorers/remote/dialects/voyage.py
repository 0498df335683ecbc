"""Voyage: POST /v1/rerank, told from Jina's by `top_k` and `data`."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Ask, Dialect, dialects, indexed


def write(ask: Ask) -> dict[str, Any]:
    return {
        "model": ask.model,
        "query": ask.query,
        "documents": ask.documents,
        "top_k": len(ask.documents),
        "truncation": True,
    }


def read(answer: Any) -> list[tuple[int, float]]:
    return indexed(answer["data"], "relevance_score")


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
