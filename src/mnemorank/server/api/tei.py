"""`/rerank`: the API of text-embeddings-inference, or of vLLM and infinity if the body has `documents`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import Body, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Discriminator, Field, Tag

from mnemorank.server.api import vllm
from mnemorank.server.api.schemas import (
    AnyOf,
    CountOrAll,
    DialectModel,
    Documents,
    Flag,
    Pipeline,
    Text,
    dialect_router,
    error_responses,
)
from mnemorank.server.api.vllm import VllmRerankRequest
from mnemorank.server.auth import Reader
from mnemorank.server.engine import Completed
from mnemorank.server.errors import Problem
from mnemorank.server.requests import ActiveRequest
from mnemorank.server.scoring import DocumentScores, rank_documents


class TeiRequest(DialectModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "query": "Where does Ruby work now?",
                "texts": ["Ruby joined Aurora Labs in March 2024.", "The cat sleeps."],
                "raw_scores": False,
                "return_text": False,
            }
        }
    )

    query: Text
    texts: Documents
    truncate: Flag | None = Field(False, description="Ignored: long texts are read in windows")
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = "right"
    raw_scores: Flag = False
    return_text: Flag = False
    top_n: CountOrAll | None = Field(None, description="Not in TEI, but LiteLLM sends it")


def _dialect(body: Any) -> str:
    has_documents = isinstance(body, dict) and "documents" in body and "texts" not in body
    return ":vllm" if has_documents or isinstance(body, VllmRerankRequest) else ":tei"


Either = Annotated[
    Annotated[TeiRequest, Tag(":tei")] | Annotated[VllmRerankRequest, Tag(":vllm")], Discriminator(_dialect), AnyOf()
]


def write_error(problem: Problem, body: Any) -> tuple[int, Mapping[str, Any]]:
    if _dialect(body) == ":vllm":
        return vllm.write_error(problem, body)
    if problem.code == "empty":
        return 400, {"error": "`texts` cannot be empty", "error_type": "Empty"}
    status, error_type = _ERROR_TYPES.get(problem.code, (problem.status_code, "Validation"))
    return status, {"error": problem.message, "error_type": error_type}


_ERROR_TYPES = {
    "empty_query": (400, "Empty"),
    "malformed": (422, "Validation"),
    "overloaded": (429, "Overloaded"),
    "timeout": (424, "Backend"),
    "model_failed": (424, "Backend"),
    "no_model": (503, "Unhealthy"),
    "internal": (500, "Backend"),
}

router = dialect_router("TEI, vLLM, infinity")
ERRORS = {"/rerank": write_error}


@router.post("/rerank", responses=error_responses({"error": "`texts` cannot be empty", "error_type": "Empty"}, 424))
async def rerank(
    request: Request, body: Annotated[Either, Body()], caller: Reader, pipeline: Pipeline = None
) -> Response:
    """Rerank texts, compatible with text-embeddings-inference, and with vLLM if the body has `documents`."""
    if isinstance(body, VllmRerankRequest):
        return await vllm.rerank(request, body, pipeline)
    started = time.monotonic()

    def respond(completed: Completed[DocumentScores]) -> JSONResponse:
        values = completed.value.logits if body.raw_scores else completed.value.relevance
        results: list[dict[str, Any]] = [
            {"index": i, "score": values[i]} for i in completed.value.order(body.top_n or None)
        ]
        if body.return_text:
            results = [{**result, "text": completed.value.texts[result["index"]]} for result in results]
        characters = len(body.query) * len(body.texts) + sum(map(len, completed.value.texts))
        return JSONResponse(results, headers=_headers(completed.usage, time.monotonic() - started, characters))

    return await rank_documents(
        request, body.query, body.texts, respond, pipeline=pipeline, top_n=body.top_n or None, field="texts"
    )


def _headers(usage: ActiveRequest, total_seconds: float, characters: int) -> dict[str, str]:
    """Return the headers of text-embeddings-inference; times are in milliseconds."""
    tokenization = max(total_seconds - usage.queue_seconds - usage.inference_seconds, 0.0)
    times = {
        "x-compute-time": total_seconds,
        "x-total-time": total_seconds,
        "x-tokenization-time": tokenization,
        "x-queue-time": usage.queue_seconds,
        "x-inference-time": usage.inference_seconds,
    }
    return {
        "x-compute-type": "cpu",
        "x-compute-characters": str(characters),
        "x-compute-tokens": str(usage.tokens),
        **{name: str(round(seconds * 1000)) for name, seconds in times.items()},
    }
