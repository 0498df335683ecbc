"""Text Embeddings Inference: POST /rerank with `texts`, answered with an array."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Dialect, RerankRequest, dialects, read_entries


def write(request: RerankRequest) -> dict[str, Any]:
    return {
        "query": request.query,
        "texts": request.documents,
        "truncate": True,
        "raw_scores": False,
        "return_text": False,
    }


def read(response: Any) -> list[tuple[int, float]]:
    return read_entries(response, "score")


dialects.add(
    Dialect(
        "tei",
        "Hugging Face Text Embeddings Inference",
        "/rerank",
        write,
        read,
        key_variables=("TEI_API_KEY",),
        max_documents=32,
    )
)
