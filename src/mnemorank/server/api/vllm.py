"""vLLM's score, and the shapes that its rerank shares."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any
from uuid import uuid4

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field, StrictInt, model_validator

from mnemorank.server.api.schemas import (
    LARGEST,
    CountOrAll,
    Document,
    Documents,
    Flag,
    Shape,
    Text,
    dialect_router,
    errors,
)
from mnemorank.server.auth import Reader
from mnemorank.server.errors import Problem
from mnemorank.server.scoring import judge_pairs

Truncation = Annotated[StrictInt, Field(ge=-1, le=LARGEST)]
_NAMES = (("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2"))


class ScoreRequest(Shape):
    """A query for each text, or one query for all: `text_1` and `text_2`, or vLLM's other names for them."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "model": "mini",
                "text_1": "Where does Ruby work now?",
                "text_2": ["Ruby joined Aurora Labs in March 2024.", "The cat sleeps."],
            }
        }
    )

    model: Text | None = Field(None, description="Any name; the served model answers")
    text_1: Documents | None = None
    text_2: Documents | None = None
    queries: Documents | None = None
    documents: Documents | None = None
    data_1: Documents | None = None
    data_2: Documents | None = None
    instruction: Text | None = None
    max_tokens_per_doc: Truncation | None = Field(None, description="0 and -1 cut nothing")
    truncate_prompt_tokens: Truncation | None = Field(None, description="Long texts are read in windows, not cut")
    use_activation: Flag | None = Field(None, description="false gives logits")
    activation: Flag | None = Field(None, description="An older name of use_activation")

    @model_validator(mode="after")
    def _has_both_sides(self) -> ScoreRequest:
        if not any(getattr(self, a) is not None and getattr(self, b) is not None for a, b in _NAMES):
            raise ValueError("expected text_1 and text_2, or queries and documents, or data_1 and data_2")
        return self

    def sides(self) -> tuple[tuple[str, str], list[str], list[str]]:
        """The names of the two sides, and their texts."""
        names = next(pair for pair in _NAMES if all(getattr(self, name) is not None for name in pair))
        first, second = (getattr(self, name) for name in names)
        return names, first, second


class ScoreResponse(Shape):
    id: str
    object: str
    created: int
    model: str
    data: list[dict[str, Any]]
    usage: dict[str, Any]


def write_error(problem: Problem, body: Any) -> tuple[int, Mapping[str, Any]]:
    status = 400 if problem.code in ("invalid", "empty", "malformed", "empty_query") else problem.status_code
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
ERRORS = {"/score": write_error, "/v1/score": write_error}


@router.post("/v1/score", response_model=ScoreResponse, responses=errors(ERROR_EXAMPLE))
@router.post("/score", response_model=ScoreResponse, responses=errors(ERROR_EXAMPLE))
async def score(request: Request, body: ScoreRequest, caller: Reader) -> JSONResponse:
    """Score texts for queries, as vLLM's API does."""
    names, first, second = body.sides()
    if len(first) not in (1, len(second)):
        message = f"{names[0]}: expected one text or as many as {names[1]} ({len(second)}), got {len(first)}"
        raise Problem(422, "invalid", message, field=names[0])
    queries = first * len(second) if len(first) == 1 else first
    if not queries:
        raise Problem(400, "empty", f"{names[1]}: is empty", field=names[1])
    answer = await judge_pairs(
        request,
        list(zip(queries, second, strict=True)),
        fields=names,
        instruction=body.instruction,
        max_tokens=most_tokens(body),
    )
    judged = answer.value
    scores = judged.logits if wants_logits(body) else judged.relevance
    return JSONResponse(
        {
            "id": f"score-{uuid4().hex}",
            "object": "list",
            "created": int(time.time()),
            "model": answer.served.model.manifest.name,
            "data": [{"index": i, "object": "score", "score": value} for i, value in enumerate(scores)],
            "usage": usage(answer.ticket.tokens),
        }
    )


def most_tokens(body: ScoreRequest | VllmRerankRequest) -> int | None:
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


class VllmRerankRequest(Shape):
    """vLLM's and infinity's rerank."""

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
    top_n: CountOrAll | None = 0
    instruction: Text | None = None
    max_tokens_per_doc: Truncation | None = Field(None, description="0 and -1 cut nothing")
    return_documents: Flag | None = True
    raw_scores: Flag | None = False
    use_activation: Flag | None = Field(None, description="false gives logits")
    activation: Flag | None = Field(None, description="An older name of use_activation")
