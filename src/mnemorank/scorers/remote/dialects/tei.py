"""Text Embeddings Inference: POST /rerank with `texts`, answered by a bare array."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Ask, Dialect, dialects, indexed


def write(ask: Ask) -> dict[str, Any]:
    return {"query": ask.query, "texts": ask.documents, "truncate": True, "raw_scores": False, "return_text": False}


def read(answer: Any) -> list[tuple[int, float]]:
    return indexed(answer, "score")


dialects.add(
    Dialect(
        "tei",
        "Hugging Face Text Embeddings Inference",
        "/rerank",
        write,
        read,
        key_variables=("TEI_API_KEY",),
        most=32,
    )
)
