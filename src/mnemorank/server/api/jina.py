"""Jina's rerank API, and Voyage's on the same path, distinguished by `top_n`, `top_k` and `truncation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Body, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Discriminator, Field, Tag

from mnemorank.server.api.schemas import (
    AnyOf,
    Count,
    CountOrAll,
    DialectModel,
    Documents,
    Flag,
    Pipeline,
    RankFields,
    Text,
    dialect_router,
    error_responses,
)
from mnemorank.server.auth import Reader
from mnemorank.server.engine import Completed
from mnemorank.server.errors import Problem
from mnemorank.server.scoring import DocumentScores, rank_documents

_EXAMPLE: dict[str, Any] = {
    "model": "mini",
    "query": "Where does Ruby work now?",
    "documents": ["Ruby joined Aurora Labs in March 2024.", "The cat sleeps."],
}


class JinaRequest(DialectModel):
    model_config = ConfigDict(json_schema_extra={"example": {**_EXAMPLE, "top_n": 1, "return_documents": True}})

    model: Text | None = Field(None, description="Ignored: the served model answers")
    query: Text
    documents: Documents
    top_n: CountOrAll | None = None
    rank_fields: RankFields | None = Field(None, description="Fields of object documents that make up the text")
    return_documents: Flag | None = True


class VoyageRequest(DialectModel):
    model_config = ConfigDict(json_schema_extra={"example": {**_EXAMPLE, "top_k": 1, "truncation": True}})

    model: Text | None = Field(None, description="Ignored: the served model answers")
    query: Text
    documents: Documents
    top_k: Count | None = None
    return_documents: Flag | None = False
    truncation: Flag | None = Field(True, description="Ignored: long documents are read in windows")


def _dialect(body: Any) -> str:
    has_voyage_fields = isinstance(body, dict) and ("top_k" in body or "truncation" in body)
    return ":voyage" if has_voyage_fields or isinstance(body, VoyageRequest) else ":jina"


Either = Annotated[
    Annotated[JinaRequest, Tag(":jina")] | Annotated[VoyageRequest, Tag(":voyage")], Discriminator(_dialect), AnyOf()
]


def write_error(problem: Problem, body: Any) -> tuple[int, Mapping[str, Any]]:
    return problem.status_code, {"detail": problem.message}


router = dialect_router("Jina, Voyage")
ERRORS = {"/v1/rerank": write_error}


@router.post("/v1/rerank", responses=error_responses({"detail": "query: is empty"}))
async def rerank(
    request: Request, body: Annotated[Either, Body()], caller: Reader, pipeline: Pipeline = None
) -> Response:
    """Rerank documents, compatible with Jina, and with Voyage if the body has `top_k` or `truncation`."""

    def respond(completed: Completed[DocumentScores]) -> JSONResponse:
        model, tokens = completed.served.model.manifest.name, completed.usage.tokens
        if isinstance(body, VoyageRequest):
            data = _voyage_results(completed.value, body)
            return JSONResponse({"object": "list", "data": data, "model": model, "usage": {"total_tokens": tokens}})
        content = {
            "model": model,
            "usage": {"total_tokens": tokens, "prompt_tokens": tokens},
            "results": _jina_results(completed.value, body),
        }
        if body.top_n is None:  # may be Voyage: LiteLLM sends neither `top_k` nor `truncation` by default
            content |= {"object": "list", "data": _voyage_results(completed.value, body)}
        return JSONResponse(content)

    return await rank_documents(
        request,
        body.query,
        body.documents,
        respond,
        pipeline=pipeline,
        top_n=_count(body),
        rank_fields=body.rank_fields or () if isinstance(body, JinaRequest) else (),
    )


def _count(body: JinaRequest | VoyageRequest) -> int | None:
    return body.top_k if isinstance(body, VoyageRequest) else body.top_n or None


def _jina_results(scores: DocumentScores, body: JinaRequest) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = [
        {"index": i, "relevance_score": scores.relevance[i]} for i in scores.order(_count(body))
    ]
    if body.return_documents:
        results = [{**result, "document": {"text": scores.texts[result["index"]]}} for result in results]
    return results


def _voyage_results(scores: DocumentScores, body: JinaRequest | VoyageRequest) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = [
        {"index": i, "relevance_score": scores.relevance[i]} for i in scores.order(_count(body))
    ]
    if body.return_documents:
        results = [{**result, "document": scores.texts[result["index"]]} for result in results]
    return results
