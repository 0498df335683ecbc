"""The native route: the full ranking pipeline over HTTP."""

from __future__ import annotations

from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from mnemorank import Ranking
from mnemorank._internal.deadline import Deadline
from mnemorank.learning.events import new_event_id
from mnemorank.model.model import Model
from mnemorank.server.admission import Work
from mnemorank.server.api.schemas import (
    ERROR_EXAMPLE,
    MemoriesRequest,
    MemoriesResponse,
    dialect_router,
    error_responses,
)
from mnemorank.server.auth import Reader, check_user, resolve_tenant
from mnemorank.server.engine import Completed, Engine
from mnemorank.server.errors import Problem
from mnemorank.server.model_slot import ServedModel
from mnemorank.server.recording import count_degradation, record_ranking
from mnemorank.server.requests import check_count, check_instruction, check_memory, check_query
from mnemorank.server.settings import ServerSettings

router = dialect_router("mnemorank")

_MAX_COMPARISONS = 2_000_000


@router.post("/v1/memories/rerank", response_model=MemoriesResponse, responses=error_responses(ERROR_EXAMPLE))
async def rerank(request: Request, body: MemoriesRequest, caller: Reader) -> Response:
    """Rank memories by the full pipeline: relevance, first stage, dates, supersession, selection."""
    engine: Engine = request.app.state.engine
    settings: ServerSettings = request.app.state.settings
    tenant = resolve_tenant(caller, body.tenant)
    check_user(caller, body.user, request.headers)
    event_id = new_event_id()
    if settings.log_texts:
        request.state.log_fields["query"] = body.query

    def work(served: ServedModel, deadline: Deadline) -> Ranking:
        lengths = check_limits(body, settings)
        size = Work.of(body.query, lengths, served.model.manifest, max_pairs=body.options.max_scored)
        with served.scorer.admitted(size):
            ranking = served.reranker.rerank_within(deadline, **body.ranking_arguments())
        return record_ranking(request, ranking, body, served.label, event_id, tenant)

    def respond(completed: Completed[Ranking]) -> JSONResponse:
        count_degradation(request, completed.value)
        usage = {"pairs": completed.usage.pairs, "tokens": completed.usage.tokens}
        response = ranking_response(completed.value, completed.served.model, body)
        return JSONResponse({"event_id": event_id, **response, "usage": usage})

    return await engine.run(request, work, respond, engine.deadline(request, body.deadline_ms))


def check_limits(body: MemoriesRequest, settings: ServerSettings) -> list[int]:
    """Raise an error if a limit is exceeded; return the number of characters in each memory."""
    check_query(body.query, settings)
    check_instruction(body.instruction, settings)
    check_count(len(body.memories), settings, "memories")
    lengths = [check_memory(memory, position, body.field, settings) for position, memory in enumerate(body.memories)]
    count = len(body.memories)
    if body.options.diversity is not None and count * min(body.top_k or count, count) > _MAX_COMPARISONS:
        message = f"memories times top_k may not exceed {_MAX_COMPARISONS}; lower top_k or send fewer memories"
        raise Problem(422, "limit", f"options.diversity: {message}", field="options.diversity")
    return lengths


def ranking_response(ranking: Ranking, model: Model, body: MemoriesRequest) -> dict[str, Any]:
    return {
        "model": {"name": model.manifest.name, "version": model.manifest.version, "fingerprint": model.fingerprint},
        "results": [result.to_dict(texts=body.return_texts, factors=body.explain) for result in ranking],
        "abstained": ranking.abstained,
        "degraded": None if ranking.degraded is None else ranking.degraded.to_dict(),
        "warnings": list(ranking.warnings),
    }
