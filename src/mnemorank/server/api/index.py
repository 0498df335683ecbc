"""Index routes: a store of memories that the server keeps and searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictFloat, StrictInt, StrictStr

from mnemorank import Memory, MemoryIndex, Ranking
from mnemorank._internal.deadline import Deadline
from mnemorank.errors import NotFoundError
from mnemorank.learning.events import new_event_id
from mnemorank.memory.memory import read_memories
from mnemorank.server.api.schemas import (
    ERROR_EXAMPLE,
    DegradationModel,
    Memories,
    ModelInfo,
    Name,
    NativeModel,
    RankingRequest,
    ResultModel,
    dialect_router,
    error_responses,
)
from mnemorank.server.auth import Caller, Reader, check_user, requires
from mnemorank.server.engine import Completed, Engine
from mnemorank.server.errors import DeadlineError, Problem
from mnemorank.server.model_slot import ServedModel
from mnemorank.server.recording import count_degradation, record_ranking
from mnemorank.server.requests import check_count, check_instruction, check_memory, check_query
from mnemorank.server.settings import MAX_DOCUMENTS, ServerSettings

router = dialect_router("index")
T = TypeVar("T")

Writer = Annotated[Caller, Depends(requires("write"))]
Value = StrictStr | StrictBool | StrictInt | StrictFloat | None
_MAX_CANDIDATES = 1000
_MAX_FILTERS = 20
# Memories between two looks at the deadline.
_ADDED_AT_ONCE = 32


class AddRequest(NativeModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "memories": [
                    {"id": "m1", "text": "Ruby works at Zenith.", "occurred_start": "2021-05"},
                    {"id": "m2", "text": "Ruby works at Aurora Labs.", "occurred_start": "2024-03-05"},
                ]
            }
        },
    )

    memories: Memories = Field(description="Strings, or objects with a text and any fields of a memory")
    field: Name | None = Field(None, description="The key that holds the text")
    on_error: Literal["raise", "skip"] = "raise"


class AddResponse(BaseModel):
    ids: list[str]
    warnings: list[str]


class DeleteRequest(NativeModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"ids": ["m1"]}})

    ids: Annotated[list[Name], Field(fail_fast=True, min_length=1, max_length=MAX_DOCUMENTS)]


class DeleteResponse(BaseModel):
    deleted: int


class SearchRequest(RankingRequest):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"example": {"query": "Where does Ruby work now?", "top_k": 5, "filter": {"type": "world"}}},
    )

    filter: Annotated[dict[Name, Value], Field(max_length=_MAX_FILTERS)] = Field(
        default_factory=dict, description="Search only memories with these values of a field or of the metadata"
    )
    top_k: Annotated[StrictInt, Field(ge=1, le=_MAX_CANDIDATES)] | None = Field(
        None, description="Number of results; all candidates by default"
    )
    candidates: Annotated[StrictInt, Field(ge=1, le=_MAX_CANDIDATES)] = Field(
        64, description="Memories to score, at least `top_k`"
    )


class FoundModel(ResultModel):
    memory: dict[str, Any] | None = None


class SearchResponse(BaseModel):
    event_id: str
    model: ModelInfo
    results: list[FoundModel]
    abstained: bool
    degraded: DegradationModel | None
    warnings: list[str]


class MemoryResponse(BaseModel):
    memory: dict[str, Any]


class StatsResponse(BaseModel):
    memories: int
    passages: int
    model: str | None
    bytes: int


@router.post("/v1/index/add", response_model=AddResponse, responses=error_responses(ERROR_EXAMPLE, 404, 409))
async def add(request: Request, body: AddRequest, caller: Writer) -> JSONResponse:
    """Add memories; one with the id of another replaces it. They are on disk when this responds."""
    index = _index(request, caller)

    def work(deadline: Deadline) -> dict[str, Any]:
        memories, warnings = _read(request, body)
        ids: list[str] = []
        for first in range(0, len(memories), _ADDED_AT_ONCE):
            if deadline.expired:
                raise DeadlineError(f"the deadline passed; {first} of {len(memories)} memories were stored")
            ids += index.add(memories[first : first + _ADDED_AT_ONCE])
        return {"ids": ids, "warnings": warnings}

    return JSONResponse(await _run(request, work))


@router.post("/v1/index/update", response_model=AddResponse, responses=error_responses(ERROR_EXAMPLE, 404, 409))
async def update(request: Request, body: AddRequest, caller: Writer) -> JSONResponse:
    """Replace memories by their ids; an unknown id is an error, and nothing is changed."""
    index = _index(request, caller)

    def work(_: Deadline) -> dict[str, Any]:
        memories, warnings = _read(request, body)
        index.update(memories)
        return {"ids": [memory.id for memory in memories], "warnings": warnings}

    return JSONResponse(await _run(request, work))


@router.post("/v1/index/delete", response_model=DeleteResponse, responses=error_responses(ERROR_EXAMPLE, 404, 409))
async def delete(request: Request, body: DeleteRequest, caller: Writer) -> JSONResponse:
    """Delete memories; unknown ids are ignored."""
    index = _index(request, caller)
    return JSONResponse({"deleted": await _run(request, lambda _: index.delete(body.ids))})


@router.get("/v1/index/get", response_model=MemoryResponse, responses=error_responses(ERROR_EXAMPLE, 404))
async def get(
    request: Request, caller: Reader, id: Annotated[str, Query(min_length=1, max_length=256)]
) -> JSONResponse:
    """Return a memory."""
    index = _index(request, caller)
    memory = await _run(request, lambda _: index.get(id))
    if memory is None:
        raise NotFoundError(f"no memory has the id {id!r:.80}", field="id", code="unknown_memory")
    return JSONResponse({"memory": memory.to_dict()})


@router.get("/v1/index/stats", response_model=StatsResponse, responses=error_responses(ERROR_EXAMPLE, 404))
async def stats(request: Request, caller: Reader) -> JSONResponse:
    """Count memories and passages."""
    index = _index(request, caller)
    return JSONResponse(asdict(await _run(request, lambda _: index.stats())))


@router.post("/v1/index/search", response_model=SearchResponse, responses=error_responses(ERROR_EXAMPLE, 404))
async def search(request: Request, body: SearchRequest, caller: Reader) -> Response:
    """Rank the best memories of the index for a query, by the full pipeline."""
    engine: Engine = request.app.state.engine
    settings: ServerSettings = request.app.state.settings
    index = _index(request, caller)
    check_user(caller, body.user, request.headers)
    event_id = new_event_id()
    if settings.log_texts:
        request.state.log_fields["query"] = body.query
    manifest = index.model.manifest
    label = f"{manifest.name}@{manifest.version}+{index.model.fingerprint}"

    def work(served: ServedModel, deadline: Deadline) -> Ranking:
        check_query(body.query, settings)
        check_instruction(body.instruction, settings)
        ranking = index.search_within(
            deadline,
            body.query,
            body.top_k,
            now=body.now,
            as_of=body.as_of,
            time_range=body.period,
            filter=body.filter,
            instruction=body.instruction,
            explain=body.explain,
            candidates=body.candidates,
            options=body.ranking_options(),
        )
        return record_ranking(request, ranking, body, label, event_id, None)

    def respond(completed: Completed[Ranking]) -> JSONResponse:
        ranking = completed.value
        count_degradation(request, ranking)
        results = [result.to_dict(texts=body.return_texts, factors=body.explain) for result in ranking]
        if body.return_texts:
            results = [
                {**entry, "memory": result.memory.to_dict()} for entry, result in zip(results, ranking, strict=True)
            ]
        return JSONResponse(
            {
                "event_id": event_id,
                "model": {
                    "name": manifest.name,
                    "version": manifest.version,
                    "fingerprint": index.model.fingerprint,
                },
                "results": results,
                "abstained": ranking.abstained,
                "degraded": None if ranking.degraded is None else ranking.degraded.to_dict(),
                "warnings": list(ranking.warnings),
            }
        )

    response = await engine.run(request, work, respond, engine.deadline(request, body.deadline_ms))
    request.state.log_fields["model"] = label  # not the one that other routes use
    return response


def _index(request: Request, caller: Caller) -> MemoryIndex:
    index: MemoryIndex | None = request.app.state.index
    if index is None:
        raise NotFoundError("this server has no index; start it with --index", code="no_index")
    if caller.tenant is not None:
        message = f"the API key {caller.name!r} belongs to a tenant, and the index is shared by all"
        raise Problem(403, "forbidden", message)
    return index


def _read(request: Request, body: AddRequest) -> tuple[list[Memory], list[str]]:
    """Check the limits and return the memories, and what was unusual about them."""
    settings: ServerSettings = request.app.state.settings
    check_count(len(body.memories), settings, "memories")
    for position, memory in enumerate(body.memories):
        check_memory(memory, position, body.field, settings)
    warnings: list[str] = []
    memories = read_memories(body.memories, field=body.field, on_error=body.on_error, report=warnings.append)
    return memories, list(dict.fromkeys(warnings))


async def _run(request: Request, work: Callable[[Deadline], T]) -> T:
    state = request.app.state
    deadline: Deadline = state.engine.deadline(request)
    pool_result: T = await state.index_pool.run(lambda: work(deadline), deadline)
    return pool_result
