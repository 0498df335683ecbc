"""The native route: memories in, the full pipeline, results that explain themselves."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from mnemorank import Ranking
from mnemorank.learning.events import RerankEvent, new_event_id
from mnemorank.server.api.schemas import ERROR_EXAMPLE, MemoriesRequest, MemoriesResponse, dialect_router, errors
from mnemorank.server.auth import Caller, Reader
from mnemorank.server.engine import Answer, Engine
from mnemorank.server.errors import Problem
from mnemorank.server.event_log import EventLog
from mnemorank.server.model_slot import Served
from mnemorank.server.observability import log_failure
from mnemorank.server.requests import check_count, check_instruction, check_memory, check_query
from mnemorank.server.settings import Settings

logger = logging.getLogger(__name__)
router = dialect_router("mnemorank")

MOST_COMPARISONS = 2_000_000


@router.post("/v1/memories/rerank", response_model=MemoriesResponse, responses=errors(ERROR_EXAMPLE))
async def rerank(request: Request, body: MemoriesRequest, caller: Reader) -> JSONResponse:
    """Rank memories by the full pipeline: relevance, first stage, dates, supersession, selection."""
    engine: Engine = request.app.state.engine
    settings: Settings = request.app.state.settings
    _check(body, settings)
    options = body.ranking_options()
    tenant = _tenant(body, caller)
    deadline = engine.deadline(request, body.deadline_ms)
    event_id = new_event_id()
    if settings.log_texts:
        request.state.notes["query"] = body.query

    def work(served: Served) -> Ranking:
        ranking = served.reranker.rerank_within(
            deadline,
            body.query,
            body.memories,
            top_k=body.top_k,
            now=body.now,
            as_of=body.as_of,
            time_range=(body.time_range[0], body.time_range[1]) if body.time_range else None,
            instruction=body.instruction,
            explain=body.explain,
            field=body.field,
            on_error=body.on_error,
            options=options,
        )
        return _record(request, ranking, body, served, event_id, tenant)

    answer = await engine.run(request, work, deadline)
    _note_degraded(request, answer.value)
    return JSONResponse(_written(answer, event_id, body))


def _check(body: MemoriesRequest, settings: Settings) -> None:
    check_query(body.query, settings)
    check_instruction(body.instruction, settings)
    check_count(len(body.memories), settings, "memories")
    for position, memory in enumerate(body.memories):
        check_memory(memory, position, body.field, settings)
    count = len(body.memories)
    if body.options.diversity is not None and count * min(body.top_k or count, count) > MOST_COMPARISONS:
        message = f"memories times top_k may not exceed {MOST_COMPARISONS}; lower top_k or send fewer memories"
        raise Problem(422, "limit", f"options.diversity: {message}", field="options.diversity")


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
    event = RerankEvent.from_ranking(
        body.query,
        shown,
        served.label,
        event_id=event_id,
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
    from mnemorank.learning.exploration import explore

    return explore(ranking, probability, source)


def _note_degraded(request: Request, ranking: Ranking) -> None:
    if ranking.degraded is not None:
        request.app.state.metrics.degraded.labels(ranking.degraded.kind).inc()
        request.state.notes["degraded"] = ranking.degraded.kind


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
        "degraded": None if ranking.degraded is None else ranking.degraded.to_dict(),
        "warnings": list(ranking.warnings),
        "usage": {"pairs": answer.ticket.pairs, "tokens": answer.ticket.tokens},
    }
