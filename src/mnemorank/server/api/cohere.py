"""Cohere's rerank, version 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from uuid import uuid4

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, StrictFloat, StrictInt

from mnemorank.server.api.schemas import LARGEST, Count, CountOrAll, Document, Shape, Text, dialect_router, errors
from mnemorank.server.auth import Reader
from mnemorank.server.errors import Problem
from mnemorank.server.scoring import Judged, judge

DOCUMENTS_PER_SEARCH_UNIT = 100


class RelevantSpans(Shape):
    mode: Literal["enabled", "disabled"]
    threshold: Annotated[StrictFloat | StrictInt, Field(ge=0, le=1)] = 0.1
    max_spans: Count | None = None


class CohereRequest(Shape):
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

    model: Text | None = Field(None, description="Any name; the served model answers")
    query: Text
    documents: list[Document]
    top_n: CountOrAll | None = None
    max_tokens_per_doc: Count | None = None
    relevant_spans: RelevantSpans | None = None
    priority: Annotated[StrictInt, Field(ge=-LARGEST, le=LARGEST)] | None = None


class CohereResult(Shape):
    index: int
    relevance_score: float


class CohereResponse(Shape):
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
    is_invalid = problem.code in ("invalid", "limit", "malformed", "empty_query")
    return problem.status_code, {"message": f"invalid request: {problem.message}" if is_invalid else problem.message}


router = dialect_router("Cohere")
ERRORS = {"/v2/rerank": write_error}


@router.post(
    "/v2/rerank", response_model=CohereResponse, responses=errors({"message": "invalid request: query: is empty"})
)
async def rerank(request: Request, body: CohereRequest, caller: Reader) -> JSONResponse:
    """Rerank documents, as Cohere's API does."""
    texts = body.documents
    answer = await judge(request, body.query, texts, max_tokens=body.max_tokens_per_doc)
    judged = answer.value
    results: list[dict[str, Any]] = [
        {"index": i, "relevance_score": judged.relevance[i]} for i in judged.order(body.top_n or None)
    ]
    if body.relevant_spans is not None and body.relevant_spans.mode == "enabled":
        results = [_with_span(result, texts, judged, body.relevant_spans) for result in results]
    return JSONResponse(
        {
            "id": str(uuid4()),
            "results": results,
            "meta": {
                "api_version": {"version": "2", "is_experimental": False},
                "billed_units": {"search_units": math.ceil(len(texts) / DOCUMENTS_PER_SEARCH_UNIT)},
            },
        }
    )


def _with_span(result: dict[str, Any], texts: list[str], judged: Judged, wanted: RelevantSpans) -> dict[str, Any]:
    """Add the part of the document that its score comes from: the best window, or all of it."""
    text, score = texts[result["index"]], result["relevance_score"]
    if score <= wanted.threshold:
        return result
    passage = judged.matched[result["index"]] or text
    start = max(text.find(passage), 0)
    return {**result, "relevant_spans": [{"start": start, "end": start + len(passage), "score": score}]}
