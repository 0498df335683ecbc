"""vLLM: POST /score with one `text_1` and many `text_2`."""

from __future__ import annotations

from typing import Any

from mnemorank.scorers.remote.dialects.protocol import Ask, Dialect, dialects, indexed


def write(ask: Ask) -> dict[str, Any]:
    body = {"model": ask.model, "text_1": ask.query, "text_2": ask.documents, "instruction": ask.instruction}
    return {key: value for key, value in body.items() if value is not None}


def read(answer: Any) -> list[tuple[int, float]]:
    return indexed(answer["data"], "score")


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
