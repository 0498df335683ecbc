"""Cohere's rerank API, version 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, StrictFloat, StrictInt

from mnemorank.server.api.schemas import (
    MAX_INTEGER,
    Count,
    CountOrAll,
    DialectModel,
    Documents,
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

_DOCUMENTS_PER_SEARCH_UNIT = 100


class RelevantSpans(DialectModel):
    mode: Literal["enabled", "disabled"]
    threshold: Annotated[StrictFloat, Field(ge=0, le=1)] = 0.1
    max_spans: Count | None = None


class CohereRequest(DialectModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "model": "mini",
                "query": "Where does Ruby work now?",
                "documents": ["Ruby joined Aurora Labs in March 2024.", "The cat sleeps."],
                "top_n": 1,
            }
        }
    )

    model: Text | None = Field(None, description="Ignored: the served model answers")
    query: Text
    documents: Documents
    top_n: CountOrAll | None = None
    rank_fields: RankFields | None = Field(None, description="Fields of object documents that make up the text")
    max_tokens_per_doc: Count | None = None
    relevant_spans: RelevantSpans | None = None
    priority: Annotated[StrictInt, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)] | None = None


class CohereResult(DialectModel):
    index: int
    relevance_score: float


class CohereResponse(DialectModel):
    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "id": "b1b5a6a9-4f8f-4f3e-9f3e-6a5c1c9f1f00",
                "results": [{"index": 0, "relevance_score": 0.98}],
                "meta": {
                    "api_version": {"version": "2", "is_experimental": False},
                    "billed_units": {"search_units": 1},
                },
            }
        }
    )

    id: str
    results: list[CohereResult]
    meta: dict[str, Any]


def write_error(problem: Problem, body: Any) -> tuple[int, Mapping[str, Any]]:
    if problem.code == "empty":
        return 400, {"message": "invalid request: list of documents must not be empty"}
    is_invalid = problem.status_code in (400, 422)
    return problem.status_code, {"message": f"invalid request: {problem.message}" if is_invalid else problem.message}


router = dialect_router("Cohere")
ERRORS = {"/v2/rerank": write_error}


@router.post(
    "/v2/rerank",
    response_model=CohereResponse,
    responses=error_responses({"message": "invalid request: query: is empty"}),
)
async def rerank(request: Request, body: CohereRequest, caller: Reader, pipeline: Pipeline = None) -> Response:
    """Rerank documents, compatible with Cohere."""

    def respond(completed: Completed[DocumentScores]) -> JSONResponse:
        scores = completed.value
        results: list[dict[str, Any]] = [
            {"index": i, "relevance_score": scores.relevance[i]} for i in scores.order(body.top_n or None)
        ]
        if body.relevant_spans is not None and body.relevant_spans.mode == "enabled":
            results = [_with_span(result, scores, body.relevant_spans) for result in results]
        meta: dict[str, Any] = {
            "api_version": {"version": "2", "is_experimental": False},
            "billed_units": {"search_units": math.ceil(len(body.documents) / _DOCUMENTS_PER_SEARCH_UNIT)},
        }
        if scores.warnings:
            meta["warnings"] = list(scores.warnings)
        return JSONResponse({"id": str(uuid4()), "results": results, "meta": meta})

    return await rank_documents(
        request,
        body.query,
        body.documents,
        respond,
        pipeline=pipeline,
        top_n=body.top_n or None,
        rank_fields=body.rank_fields or (),
        max_tokens=body.max_tokens_per_doc,
    )


def _with_span(result: dict[str, Any], scores: DocumentScores, options: RelevantSpans) -> dict[str, Any]:
    """Add the part of the document that its score is based on: the best window, or all of it."""
    text, score = scores.texts[result["index"]], result["relevance_score"]
    if score <= options.threshold:
        return result
    passage = scores.passages[result["index"]] or text
    start = max(text.find(passage), 0)
    return {**result, "relevant_spans": [{"start": start, "end": start + len(passage), "score": score}]}
