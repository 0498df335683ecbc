"""Jina's rerank, and Voyage's on the same path, told apart by `top_k` and `truncation`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import Body, Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Discriminator, Field, Tag

from mnemorank.server.api.schemas import AnyOf, Count, CountOrAll, Document, Flag, Shape, Text, dialect_router, errors
from mnemorank.server.auth import Reader
from mnemorank.server.errors import Problem
from mnemorank.server.scoring import judge

_EXAMPLE: dict[str, Any] = {
    "model": "mini",
    "query": "Where does Ruby work now?",
    "documents": ["Ruby joined Aurora Labs in March 2024.", "The cat sleeps."],
}


class JinaRequest(Shape):
    model_config = ConfigDict(json_schema_extra={"example": {**_EXAMPLE, "top_n": 1, "return_documents": True}})

    model: Text | None = Field(None, description="Any name; the served model answers")
    query: Text
    documents: list[Document]
    top_n: CountOrAll | None = None
    return_documents: Flag | None = True


class VoyageRequest(Shape):
    model_config = ConfigDict(json_schema_extra={"example": {**_EXAMPLE, "top_k": 1, "truncation": True}})

    model: Text | None = Field(None, description="Any name; the served model answers")
    query: Text
    documents: list[Document]
    top_k: Count | None = None
    return_documents: Flag | None = False
    truncation: Flag | None = Field(True, description="Long documents are read in windows, whatever this says")


def _dialect(body: Any) -> str:
    return ":voyage" if isinstance(body, dict) and ("top_k" in body or "truncation" in body) else ":jina"


Either = Annotated[
    Annotated[JinaRequest, Tag(":jina")] | Annotated[VoyageRequest, Tag(":voyage")], Discriminator(_dialect), AnyOf()
]


def write_error(problem: Problem, body: Any) -> tuple[int, Mapping[str, Any]]:
    return problem.status_code, {"detail": problem.message}


router = dialect_router("Jina, Voyage")
ERRORS = {"/v1/rerank": write_error}


@router.post("/v1/rerank", responses=errors({"detail": "query: is empty"}))
async def rerank(request: Request, body: Annotated[Either, Body()], caller: Reader) -> JSONResponse:
    """Rerank documents, as Jina's API does; as Voyage's if the body has `top_k` or `truncation`."""
    texts = body.documents
    answer = await judge(request, body.query, texts)
    judged, tokens = answer.value, answer.ticket.tokens
    model = answer.served.model.manifest.name
    if isinstance(body, VoyageRequest):
        data: list[dict[str, Any]] = [
            {"index": i, "relevance_score": judged.relevance[i]} for i in judged.order(body.top_k)
        ]
        if body.return_documents:
            data = [{**entry, "document": texts[entry["index"]]} for entry in data]
        return JSONResponse({"object": "list", "data": data, "model": model, "usage": {"total_tokens": tokens}})
    results: list[dict[str, Any]] = [
        {"index": i, "relevance_score": judged.relevance[i]} for i in judged.order(body.top_n or None)
    ]
    if body.return_documents:
        results = [{**result, "document": {"text": texts[result["index"]]}} for result in results]
    usage = {"total_tokens": tokens, "prompt_tokens": tokens}
    return JSONResponse({"model": model, "usage": usage, "results": results})
