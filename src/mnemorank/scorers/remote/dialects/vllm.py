"""vLLM: POST /score with one `text_1` and many `text_2`."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Dialect, RerankRequest, dialects, read_entries


def write(request: RerankRequest) -> dict[str, Any]:
    body = {
        "model": request.model,
        "text_1": request.query,
        "text_2": request.documents,
        "instruction": request.instruction,
    }
    return {key: value for key, value in body.items() if value is not None}


def read(response: Any) -> list[tuple[int, float]]:
    return read_entries(response["data"], "score")


dialects.add(
    Dialect(
        "vllm",
        "vLLM's score API",
        "/score",
        write,
        read,
        key_variables=("VLLM_API_KEY",),
    )
)
