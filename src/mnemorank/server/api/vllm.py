"""vLLM's score API, its rerank API, which `tei.py` routes here, and infinity's rerank API."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any
from uuid import uuid4

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, StrictInt, model_validator

from mnemorank.errors import InputError
from mnemorank.server.api.schemas import (
    MAX_INTEGER,
    CountOrAll,
    DialectModel,
    Documents,
    Flag,
    OneOrMoreTexts,
    Pipeline,
    RankFields,
    Text,
    dialect_router,
    error_responses,
)
from mnemorank.server.auth import Reader
from mnemorank.server.documents import PipelineChoice
from mnemorank.server.engine import Completed
from mnemorank.server.errors import Problem
from mnemorank.server.scoring import DocumentScores, rank_documents, score_pairs

Truncation = Annotated[StrictInt, Field(ge=-1, le=MAX_INTEGER)]
_FIELD_PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))


class ScoreRequest(DialectModel):
    """A query for each text, or one query for all: `text_1` and `text_2`, or one of vLLM's other pairs of names."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "model": "mini",
                "text_1": "Where does Ruby work now?",
                "text_2": ["Ruby joined Aurora Labs in March 2024.", "The cat sleeps."],
            }
        }
    )

    model: Text | None = Field(None, description="Ignored: the served model answers")
    text_1: OneOrMoreTexts | None = None
    text_2: OneOrMoreTexts | None = None
    queries: OneOrMoreTexts | None = None
    documents: OneOrMoreTexts | None = None
    data_1: OneOrMoreTexts | None = None
    data_2: OneOrMoreTexts | None = None
    instruction: Text | None = None
    max_tokens_per_doc: Truncation | None = Field(None, description="0 and -1 for no limit")
    truncate_prompt_tokens: Truncation | None = Field(None, description="Ignored: long texts are read in windows")
    use_activation: Flag | None = Field(None, description="false for logits")
    activation: Flag | None = Field(None, description="An older name of use_activation")

    @model_validator(mode="after")
    def _has_both_sides(self) -> ScoreRequest:
        if not any(getattr(self, a) is not None and getattr(self, b) is not None for a, b in _FIELD_PAIRS):
            raise InputError("expected text_1 and text_2, or queries and documents, or data_1 and data_2")
        return self

    def sides(self) -> tuple[tuple[str, str], list[str], list[str]]:
        """Return the names of the two fields, and their texts."""
        names = next(pair for pair in _FIELD_PAIRS if all(getattr(self, name) is not None for name in pair))
        first, second = (getattr(self, name) for name in names)
        return names, first, second


class ScoreResponse(DialectModel):
    id: str
    object: str
    created: int
    model: str
    data: list[dict[str, Any]]
    usage: dict[str, Any]


def write_error(problem: Problem, body: Any) -> tuple[int, Mapping[str, Any]]:
    status = 400 if problem.status_code == 422 and problem.code != "limit" else problem.status_code
    return status, {
        "error": {
            "message": problem.message,
            "type": _TYPES.get(status, "BadRequestError" if status < 500 else "InternalServerError"),
            "param": problem.field,
            "code": status,
        }
    }


_TYPES = {
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    422: "UnprocessableEntityError",
    429: "RateLimitError",
    503: "ServiceUnavailableError",
}
ERROR_EXAMPLE = {"error": {"message": "query: is empty", "type": "BadRequestError", "param": "query", "code": 400}}

router = dialect_router("vLLM")
ERRORS = dict.fromkeys(("/score", "/v1/score", "/infinity/rerank"), write_error)


@router.post("/v1/score", response_model=ScoreResponse, responses=error_responses(ERROR_EXAMPLE))
@router.post("/score", response_model=ScoreResponse, responses=error_responses(ERROR_EXAMPLE))
async def score(request: Request, body: ScoreRequest, caller: Reader) -> Response:
    """Score texts for queries, compatible with vLLM."""
    names, first, second = body.sides()
    if len(first) not in (1, len(second)):
        message = f"expected one text or as many as {names[1]} ({len(second)}), got {len(first)}"
        raise InputError(message, field=names[0])
    if not second:
        raise Problem(400, "empty", f"{names[1]}: is empty", field=names[1])

    def respond(completed: Completed[DocumentScores]) -> JSONResponse:
        scores = completed.value.logits if wants_logits(body) else completed.value.relevance
        return JSONResponse(
            {
                "id": f"score-{uuid4().hex}",
                "object": "list",
                "created": int(time.time()),
                "model": completed.served.model.manifest.name,
                "data": [{"index": i, "object": "score", "score": value} for i, value in enumerate(scores)],
                "usage": usage(completed.usage.tokens),
            }
        )

    return await score_pairs(
        request,
        first,
        second,
        respond,
        fields=names,
        instruction=body.instruction,
        max_tokens=max_tokens(body),
    )


def max_tokens(body: ScoreRequest | VllmRerankRequest) -> int | None:
    """Return the limit on the tokens of each document; None for no limit."""
    limit = body.max_tokens_per_doc
    return limit if limit is not None and limit > 0 else None


def wants_logits(body: ScoreRequest | VllmRerankRequest) -> bool:
    return body.use_activation is False or body.activation is False


def usage(tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": tokens,
        "total_tokens": tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


class VllmRerankRequest(DialectModel):
    """The rerank API of vLLM and infinity."""

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
    top_n: CountOrAll | None = 0
    rank_fields: RankFields | None = Field(None, description="Fields of object documents that make up the text")
    instruction: Text | None = None
    max_tokens_per_doc: Truncation | None = Field(None, description="0 and -1 for no limit")
    return_documents: Flag | None = True
    raw_scores: Flag | None = False
    use_activation: Flag | None = Field(None, description="false for logits")
    activation: Flag | None = Field(None, description="An older name of use_activation")


@router.post("/infinity/rerank", tags=["infinity"], responses=error_responses(ERROR_EXAMPLE))
async def rerank_as_infinity(
    request: Request, body: VllmRerankRequest, caller: Reader, pipeline: Pipeline = None
) -> Response:
    """Rerank documents, compatible with infinity: like vLLM, but with documents as strings."""
    return await rerank(request, body, pipeline, is_infinity=True)


async def rerank(
    request: Request,
    body: VllmRerankRequest,
    pipeline: PipelineChoice | None,
    *,
    is_infinity: bool = False,
) -> Response:
    """Rerank documents and respond as vLLM or infinity do."""

    def respond(completed: Completed[DocumentScores]) -> JSONResponse:
        scores, tokens = completed.value, completed.usage.tokens
        values = scores.logits if body.raw_scores or wants_logits(body) else scores.relevance
        results: list[dict[str, Any]] = [
            {"index": i, "relevance_score": values[i]} for i in scores.order(body.top_n or None)
        ]
        if body.return_documents is not False:
            texts = [scores.texts[result["index"]] for result in results]
            documents = texts if is_infinity else [{"text": text} for text in texts]
            results = [
                {"index": result["index"], "document": document, "relevance_score": result["relevance_score"]}
                for result, document in zip(results, documents, strict=True)
            ]
        return JSONResponse(
            {
                "id": f"rerank-{uuid4().hex}",
                "model": completed.served.model.manifest.name,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
                "results": results,
            }
        )

    return await rank_documents(
        request,
        body.query,
        body.documents,
        respond,
        pipeline=pipeline,
        top_n=body.top_n or None,
        rank_fields=body.rank_fields or (),
        instruction=body.instruction,
        max_tokens=max_tokens(body),
    )
