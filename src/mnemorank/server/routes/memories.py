"""The native route: memories in, the full pipeline, results that explain themselves."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, PlainValidator, StrictFloat, StrictInt, WithJsonSchema

from mnemorank import Fusion, Options, Ranking, Selection
from mnemorank.errors import InputError
from mnemorank.server.auth import Caller, Reader
from mnemorank.server.engine import Answer, Engine
from mnemorank.server.errors import DeadlineError, Problem
from mnemorank.server.events import EventLog, describe, new_event_id
from mnemorank.server.limits import LONGEST_NAME, check_count, check_id, check_instruction, check_query
from mnemorank.server.logs import log_failure
from mnemorank.server.routes.shapes import Count, Flag, Text, dialect_router, errors
from mnemorank.server.settings import Settings
from mnemorank.server.swap import Served

logger = logging.getLogger(__name__)

T = TypeVar("T")

MOST_COMPARISONS = 2_000_000
_NO_TIME = 0.001
Number = Annotated[StrictFloat | StrictInt, Field(ge=-1e9, le=1e9)]
Name = Annotated[Text, Field(min_length=1, max_length=LONGEST_NAME)]


def _is_memory(value: object) -> object:
    if not isinstance(value, (str, dict)):
        raise ValueError("expected a string or an object")
    return value


MemoryShape = Annotated[
    str | dict[str, Any],
    PlainValidator(_is_memory),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]


def _is_supersede(value: object) -> object:
    if not isinstance(value, bool) and value not in ("demote", "drop"):
        raise ValueError('expected true, false, "demote" or "drop"')
    return value


SupersedeShape = Annotated[
    bool | Literal["demote", "drop"],
    PlainValidator(_is_supersede),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, {"enum": ["demote", "drop"], "type": "string"}]}),
]


class NativeShape(BaseModel):
    """A native request. Unknown fields are errors: a misspelt option should not be passed over."""

    model_config = ConfigDict(extra="forbid")


class FusionShape(NativeShape):
    recency: Literal["none", "linear", "exponential"] = "none"
    recency_weight: Number = 0.2
    recency_days: Number = 365.0
    half_life_days: Number = 90.0
    temporal_weight: Number = 0.2
    proof_weight: Number = 0.1
    trust_weight: Number = 0.2
    first_stage_weight: Number | None = None
    first_stage_method: Literal["score", "rank"] | None = None
    link_weight: Number | None = None
    occasion_weight: Number | None = None


class SelectionShape(NativeShape):
    floor: Number | None = None
    diversity: Number | None = None
    tie_margin: Number = 0.0
    token_budget: Count | None = None
    replace_only: Number | None = None


class MemoriesRequest(NativeShape):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "query": "Where does Ruby work now?",
                "memories": [
                    {"id": "m1", "text": "Ruby works at Zenith.", "occurred_start": "2021-05", "score": 0.81},
                    {"id": "m2", "text": "Ruby works at Aurora Labs.", "occurred_start": "2024-03-05", "score": 0.78},
                    "The cat sleeps.",
                ],
                "now": "2025-01-15",
                "top_k": 2,
                "explain": True,
            }
        },
    )

    query: Text
    memories: list[MemoryShape] = Field(description="Texts, or objects with a text and what is known of it")
    top_k: Count | None = Field(None, description="How many results; all by default")
    now: Text | None = Field(None, description="The present; the clock's by default")
    as_of: Text | None = Field(None, description="Ask for the state at this date")
    time_range: Annotated[list[Text], Field(min_length=2, max_length=2)] | None = None
    instruction: Text | None = Field(None, description="For models that take one")
    deadline_ms: Annotated[StrictFloat | StrictInt, Field(gt=0, le=1e9)] | None = Field(
        None, description="What is not scored by then follows in first-stage order, and the answer says degraded"
    )
    explain: Flag = False
    return_texts: Flag = True
    field: Name | None = Field(None, description="The key that holds the text")
    on_error: Literal["raise", "skip"] = "raise"
    first_stage: Literal["auto", "given", "bm25", "none"] = "auto"
    supersede: SupersedeShape = Field(True, description="What is outdated ranks below its successor, or is left out")
    limit: Count | None = Field(None, description="Score only so many, the first stage's best")
    abstain_below: Annotated[StrictFloat | StrictInt, Field(ge=0, le=1)] | None = Field(
        None, description="The relevance the best must reach; the model's by default, 0 never abstains"
    )
    fusion: FusionShape = FusionShape()
    selection: SelectionShape = SelectionShape()
    user: Name | None = Field(None, description="Who asks, by a name of your own; for the feedback log")
    tenant: Name | None = Field(None, description="Whose data this is, where the API key does not say it")
    test: Flag = Field(False, description="Test traffic; learning leaves it out")

    def options(self) -> Options:
        return Options(
            fusion=_made("fusion", Fusion, self.fusion),
            selection=_made("selection", Selection, self.selection),
            first_stage=self.first_stage,
            supersede=self.supersede,
            limit=self.limit,
            abstain_below=self.abstain_below,
        )


def _made(name: str, kind: type[T], shape: NativeShape) -> T:
    """The library's own options; what it says is wrong with one is told by its full name."""
    try:
        return kind(**shape.model_dump())
    except InputError as error:
        field, _, _ = str(error).partition(":")
        raise Problem(422, "invalid", f"{name}.{error}", field=f"{name}.{field}") from None


class ModelShape(BaseModel):
    name: str
    version: str
    fingerprint: str


class ResultShape(BaseModel):
    index: int
    id: str | None
    rank: int
    relevance: float | None
    score: float | None
    raw_score: float | None
    rank_change: int
    stale: bool
    superseded_by: int | None
    stale_because: Literal["stated", "key", "alike"] | None
    text: str | None = None
    passage: str | None = None
    factors: dict[str, float] | None = None


class MemoriesResponse(BaseModel):
    event_id: str
    model: ModelShape
    results: list[ResultShape]
    abstained: bool
    degraded: str | None
    warnings: list[str]
    usage: dict[str, int]


router = dialect_router("mnemorank")
ERROR_EXAMPLE = {"error": {"code": "invalid", "message": "query: is empty", "field": "query"}}


@router.post("/v1/memories/rerank", response_model=MemoriesResponse, responses=errors(ERROR_EXAMPLE))
async def rerank(request: Request, body: MemoriesRequest, caller: Reader) -> JSONResponse:
    """Rank memories by the full pipeline: relevance, first stage, dates, supersession, selection."""
    engine: Engine = request.app.state.engine
    settings: Settings = request.app.state.settings
    _check(body, settings)
    options = body.options()
    tenant = _tenant(body, caller)
    deadline = engine.deadline(request, body.deadline_ms)
    is_urgent = body.deadline_ms is not None or "x-deadline-ms" in request.headers
    event_id = new_event_id()
    if settings.log_texts:
        request.state.notes["query"] = body.query

    def rank(served: Served, deadline_ms: float | None) -> Ranking:
        return served.reranker.rerank(
            body.query,
            body.memories,
            top_k=body.top_k,
            now=body.now,
            as_of=body.as_of,
            time_range=tuple(body.time_range) if body.time_range else None,  # type: ignore[arg-type]
            instruction=body.instruction,
            deadline_ms=deadline_ms,
            explain=body.explain,
            field=body.field,
            on_error=body.on_error,
            options=options,
        )

    def work(served: Served) -> Ranking:
        try:
            ranking = rank(served, max((deadline - time.monotonic()) * 1000, _NO_TIME) if is_urgent else None)
        except DeadlineError:
            ranking = rank(served, _NO_TIME)
        return _record(request, ranking, body, served, event_id, tenant)

    answer = await engine.run(request, work, None if is_urgent else deadline)
    _note_degraded(request, answer.value)
    return JSONResponse(_written(answer, event_id, body))


def _check(body: MemoriesRequest, settings: Settings) -> None:
    check_query(body.query, settings)
    check_instruction(body.instruction, settings)
    check_count(len(body.memories), settings, "memories")
    for position, memory in enumerate(body.memories):
        for field, text in _texts(memory, f"memories.{position}"):
            if len(text) > settings.max_document_chars:
                message = f"{len(text)} characters, more than max_document_chars = {settings.max_document_chars}"
                raise Problem(422, "limit", f"{field}: has {message}", field=field)
        if isinstance(memory, dict):
            check_id(memory, position, body.field)
    count = len(body.memories)
    if body.selection.diversity is not None and count * min(body.top_k or count, count) > MOST_COMPARISONS:
        message = f"memories times top_k may not exceed {MOST_COMPARISONS}; lower top_k or send fewer memories"
        raise Problem(422, "limit", f"selection.diversity: {message}", field="selection.diversity")


def _texts(value: object, field: str) -> Iterator[tuple[str, str]]:
    """All strings of a memory with their places: a text may stand in `metadata` or `payload`."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _texts(part, f"{field}.{key}")


def _tenant(body: MemoriesRequest, caller: Caller) -> str | None:
    if caller.tenant is not None and body.tenant not in (None, caller.tenant):
        raise Problem(403, "forbidden", "tenant: is not the API key's", field="tenant")
    return caller.tenant or body.tenant


def _record(
    request: Request, ranking: Ranking, body: MemoriesRequest, served: Served, event_id: str, tenant: str | None
) -> Ranking:
    """Log the event before the answer is sent. A log that fails does not fail the answer, which says so."""
    log: EventLog | None = request.app.state.event_log
    if log is None:
        return ranking
    shown, propensities = _explored(ranking, request.app.state.settings.explore or 0.0, request.app.state.exploration)
    event = describe(
        shown,
        body.query,
        event_id=event_id,
        model_version=served.label,
        tenant=tenant,
        user=body.user,
        test=body.test,
        query_time=body.now,
        propensities=propensities,
    )
    try:
        log.record(event)
    except Exception as error:
        log_failure(logger, "event lost", error, event_id=event_id)
        request.app.state.metrics.events_lost.inc()
        request.state.notes["event_lost"] = True
    return shown


def _explored(ranking: Ranking, probability: float, source: random.Random) -> tuple[Ranking, list[float] | None]:
    if probability == 0:
        return ranking, None
    from mnemorank.learning.explore import explore

    return explore(ranking, probability, source)


def _note_degraded(request: Request, ranking: Ranking) -> None:
    if ranking.degraded is not None:
        reason = "deadline" if ranking.degraded.startswith("deadline") else "model"
        request.app.state.metrics.degraded.labels(reason).inc()
        request.state.notes["degraded"] = reason


def _written(answer: Answer[Ranking], event_id: str, body: MemoriesRequest) -> Mapping[str, Any]:
    ranking, manifest = answer.value, answer.served.model.manifest
    return {
        "event_id": event_id,
        "model": {
            "name": manifest.name,
            "version": manifest.version,
            "fingerprint": answer.served.model.fingerprint,
        },
        "results": [result.to_dict(texts=body.return_texts, factors=body.explain) for result in ranking],
        "abstained": ranking.abstained,
        "degraded": ranking.degraded,
        "warnings": list(ranking.warnings),
        "usage": {"pairs": answer.ticket.pairs, "tokens": answer.ticket.tokens},
    }
