"""`/rerank`: text-embeddings-inference's if the body has `texts`, vLLM's and infinity's if it has `documents`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import Body, Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Discriminator, Field, Tag

from mnemorank.server.api import vllm
from mnemorank.server.api.schemas import AnyOf, Flag, Shape, Text, dialect_router, errors
from mnemorank.server.api.vllm import VllmRerankRequest
from mnemorank.server.auth import Reader
from mnemorank.server.errors import Problem
from mnemorank.server.scoring import judge
from mnemorank.server.ticket import Ticket


class TeiRequest(Shape):
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
    texts: list[Text]
    truncate: Flag | None = Field(False, description="Long texts are read in windows, whatever this says")
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = "right"
    raw_scores: Flag = False
    return_text: Flag = False


def _dialect(body: Any) -> str:
    return ":vllm" if isinstance(body, dict) and "documents" in body and "texts" not in body else ":tei"


Either = Annotated[
    Annotated[TeiRequest, Tag(":tei")] | Annotated[VllmRerankRequest, Tag(":vllm")], Discriminator(_dialect), AnyOf()
]


def write_error(problem: Problem, body: Any) -> tuple[int, Mapping[str, Any]]:
    if _dialect(body) == ":vllm":
        return vllm.write_error(problem, body)
    if problem.code == "empty":
        return 400, {"error": "`texts` cannot be empty", "error_type": "Empty"}
    status, kind = _KINDS.get(problem.code, (problem.status_code, "Validation"))
    return status, {"error": problem.message, "error_type": kind}


_KINDS = {
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


@router.post("/rerank", responses=errors({"error": "`texts` cannot be empty", "error_type": "Empty"}, 424))
async def rerank(request: Request, body: Annotated[Either, Body()], caller: Reader) -> JSONResponse:
    """Rerank texts, as text-embeddings-inference does; as vLLM does if the body has `documents`."""
    if isinstance(body, VllmRerankRequest):
        return await _rerank_as_vllm(request, body)
    started = time.monotonic()
    answer = await judge(request, body.query, body.texts, field="texts")
    judged = answer.value
    scores = judged.logits if body.raw_scores else judged.relevance
    results: list[dict[str, Any]] = [{"index": i, "score": scores[i]} for i in judged.order()]
    if body.return_text:
        results = [{**result, "text": body.texts[result["index"]]} for result in results]
    characters = len(body.query) * len(body.texts) + sum(map(len, body.texts))
    return JSONResponse(results, headers=_headers(answer.ticket, time.monotonic() - started, characters))


def _headers(ticket: Ticket, total_seconds: float, characters: int) -> dict[str, str]:
    """TEI's headers; times are in milliseconds."""
    tokenization = max(total_seconds - ticket.queue_seconds - ticket.inference_seconds, 0.0)
    times = {
        "x-compute-time": total_seconds,
        "x-total-time": total_seconds,
        "x-tokenization-time": tokenization,
        "x-queue-time": ticket.queue_seconds,
        "x-inference-time": ticket.inference_seconds,
    }
    return {
        "x-compute-type": "cpu",
        "x-compute-characters": str(characters),
        "x-compute-tokens": str(ticket.tokens),
        **{name: str(round(seconds * 1000)) for name, seconds in times.items()},
    }


async def _rerank_as_vllm(request: Request, body: VllmRerankRequest) -> JSONResponse:
    texts = body.documents
    answer = await judge(request, body.query, texts, instruction=body.instruction, max_tokens=vllm.most_tokens(body))
    judged, tokens = answer.value, answer.ticket.tokens
    scores = judged.logits if body.raw_scores or vllm.wants_logits(body) else judged.relevance
    results: list[dict[str, Any]] = [
        {"index": i, "document": {"text": texts[i]}, "relevance_score": scores[i]}
        for i in judged.order(body.top_n or None)
    ]
    if body.return_documents is False:
        results = [{"index": r["index"], "relevance_score": r["relevance_score"]} for r in results]
    return JSONResponse(
        {
            "id": f"rerank-{uuid4().hex}",
            "model": answer.served.model.manifest.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            "results": results,
        }
    )
