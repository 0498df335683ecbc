"""Learning routes: what `mnemorank learn` does, over HTTP. They need an admin key."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from mnemorank.errors import ArtifactError, ConflictError, NotFoundError
from mnemorank.server.api.schemas import ERROR_EXAMPLE, Flag, NativeModel, Text, dialect_router, error_responses
from mnemorank.server.auth import Admin, Caller
from mnemorank.server.errors import Problem
from mnemorank.server.learning import Learning, run_in_store

router = dialect_router("learning")
RESPONSES = error_responses(ERROR_EXAMPLE, 404, 409)

_VERSION_PATTERN = r"^\d{4,9}$"
VersionName = Annotated[Text, Field(pattern=_VERSION_PATTERN)]
VersionParameter = Annotated[str, Path(pattern=_VERSION_PATTERN)]
RunId = Annotated[str, Path(pattern=r"^[0-9a-f-]{1,40}$")]
Count = Annotated[int, Query(ge=1, le=1_000_000)]
Why = Annotated[Text, Field(max_length=1000, description="Recorded in the history")]


class TrainRequest(NativeModel):
    promote: Flag = Field(False, description="Promote the candidate if it passes the gate")


class EvaluateRequest(NativeModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"version": "0002"}})

    version: VersionName


class PromoteRequest(EvaluateRequest):
    force: Flag = Field(False, description="Promote the version even if it did not pass the gate")
    why: Why = ""


class RollbackRequest(NativeModel):
    version: VersionName | None = Field(None, description="Any version; by default the previous one")
    why: Why = ""


@router.get("/v1/learning/status", responses=RESPONSES)
async def status(request: Request, caller: Admin) -> JSONResponse:
    """Return the state of the loop: versions, events, examples, the last training run."""
    return await _respond(request, caller, lambda learning: learning.loop.status())


@router.post("/v1/learning/mine", responses=RESPONSES)
async def mine(request: Request, caller: Admin) -> JSONResponse:
    """Mine examples from the feedback."""

    def work(learning: Learning) -> dict[str, Any]:
        mined = learning.loop.mine()
        return {"examples": len(mined.examples), "dropped": {k: n for k, n in mined.dropped.items() if n}}

    return await _respond(request, caller, work)


@router.post("/v1/learning/train", responses=RESPONSES, status_code=202)
async def train(request: Request, body: TrainRequest, caller: Admin) -> JSONResponse:
    """Start training a candidate on the mined examples in a separate process."""

    def work(learning: Learning) -> dict[str, Any]:
        run, _ = learning.loop.train(promote=body.promote, who=caller.name)
        return run.summary()

    return await _respond(request, caller, work, 202)


@router.post("/v1/learning/run", responses=RESPONSES, status_code=202)
async def run(request: Request, caller: Admin) -> JSONResponse:
    """Mine, start training, and promote the candidate if it passes the gate."""
    return await _respond(request, caller, lambda learning: learning.start_run(caller.name).summary(), 202)


@router.post("/v1/learning/evaluate", responses=RESPONSES)
async def evaluate(request: Request, body: EvaluateRequest, caller: Admin) -> JSONResponse:
    """Compare a version with the current one and return the gate's decision."""

    def work(learning: Learning) -> dict[str, Any]:
        return learning.loop.evaluate(body.version, who=caller.name).to_dict()

    return await _respond(request, caller, work)


@router.post("/v1/learning/promote", responses=RESPONSES)
async def promote(request: Request, body: PromoteRequest, caller: Admin) -> JSONResponse:
    """Put a version that passed the gate in service. The server switches to it within a second or two."""

    def work(learning: Learning) -> dict[str, Any]:
        version = learning.loop.promote(body.version, who=caller.name, why=body.why, force=body.force)
        return {"current": version.name}

    return await _respond(request, caller, work)


@router.post("/v1/learning/rollback", responses=RESPONSES)
async def rollback(request: Request, body: RollbackRequest, caller: Admin) -> JSONResponse:
    """Put an earlier version back in service."""

    def work(learning: Learning) -> dict[str, Any]:
        return {"current": learning.loop.versions.rollback(body.version, who=caller.name, why=body.why).name}

    return await _respond(request, caller, work)


@router.get("/v1/learning/history", responses=RESPONSES)
async def history(request: Request, caller: Admin) -> JSONResponse:
    """Return who did what and why, oldest first."""
    return await _respond(request, caller, lambda learning: {"entries": learning.loop.versions.history.entries()})


@router.get("/v1/learning/runs", responses=RESPONSES)
async def runs(request: Request, caller: Admin) -> JSONResponse:
    """List all training runs, oldest first."""
    return await _respond(
        request, caller, lambda learning: {"runs": [run.summary() for run in learning.loop.runs.all()]}
    )


@router.get("/v1/learning/runs/{run_id}", responses=RESPONSES)
async def run_details(request: Request, run_id: RunId, caller: Admin) -> JSONResponse:
    """Return a training run with its progress, and its loss and dev score over time."""

    def work(learning: Learning) -> dict[str, Any]:
        runs = learning.loop.runs
        return {**runs.get(run_id).summary(), "progress": runs.progress(run_id), "curve": runs.curve(run_id)}

    return await _respond(request, caller, work)


@router.get("/v1/learning/runs/{run_id}/log", responses=RESPONSES)
async def run_log(request: Request, run_id: RunId, caller: Admin, last: Count = 200) -> JSONResponse:
    """Return the last lines that a training run printed."""
    return await _respond(request, caller, lambda learning: {"lines": learning.loop.runs.log_lines(run_id, last)})


@router.post("/v1/learning/runs/{run_id}/cancel", responses=RESPONSES)
async def cancel(request: Request, run_id: RunId, caller: Admin) -> JSONResponse:
    """Cancel a training run."""
    return await _respond(request, caller, lambda learning: learning.loop.runs.cancel(run_id).summary())


@router.get("/v1/learning/reports/unused", responses=RESPONSES)
async def unused(request: Request, caller: Admin, min_count: Count = 10) -> JSONResponse:
    """List the memories that were shown at least `min_count` times and never used."""

    def work(learning: Learning) -> dict[str, Any]:
        from mnemorank.learning.reports import unused_memories

        log = learning.loop.store.events(tenant=caller.tenant)
        return {"memories": [asdict(memory) for memory in unused_memories(log, min_count)]}

    return await _respond(request, caller, work, is_tenant_scoped=True)


@router.get("/v1/learning/reports/no-hits", responses=RESPONSES)
async def no_hits(request: Request, caller: Admin, min_count: Count = 1) -> JSONResponse:
    """List the queries that were asked at least `min_count` times without a useful result."""

    def work(learning: Learning) -> dict[str, Any]:
        from mnemorank.learning.reports import unanswered_queries

        log = learning.loop.store.events(tenant=caller.tenant)
        return {"queries": [asdict(query) for query in unanswered_queries(log, min_count)]}

    return await _respond(request, caller, work, is_tenant_scoped=True)


@router.get("/v1/learning/reports/daily", responses=RESPONSES)
async def daily(request: Request, caller: Admin, days: Annotated[int, Query(ge=1, le=3650)] = 30) -> JSONResponse:
    """Count events and signals by day."""

    def work(learning: Learning) -> dict[str, Any]:
        from mnemorank.learning.reports import daily_feedback

        log = learning.loop.store.events(since=time.time() - 86_400 * days, tenant=caller.tenant)
        return {"days": [asdict(day) for day in daily_feedback(log)]}

    return await _respond(request, caller, work, is_tenant_scoped=True)


@router.get("/v1/learning/examples", responses=RESPONSES)
async def mined_examples(
    request: Request, caller: Admin, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> JSONResponse:
    """Return the first mined examples, in the format `lists`, with their split and provenance."""

    def work(learning: Learning) -> dict[str, Any]:
        from mnemorank.learning.store import examples

        mined = examples.load_examples(learning.loop.store.database)
        return {"count": len(mined), "examples": [examples.with_provenance(entry) for entry in mined[:limit]]}

    return await _respond(request, caller, work)


@router.get("/v1/learning/shadow/{version}", responses=RESPONSES)
async def shadow(request: Request, version: VersionParameter, caller: Admin) -> JSONResponse:
    """Compare a shadow candidate with what was shown, by later feedback."""

    def work(learning: Learning) -> dict[str, Any]:
        result = learning.loop.shadow_result(version)
        if result is None:
            raise ConflictError(f"no event that {version} scored has feedback yet", field="version", code="no_feedback")
        return asdict(result)

    return await _respond(request, caller, work)


async def _respond(
    request: Request,
    caller: Caller,
    work: Callable[[Learning], dict[str, Any]],
    status_code: int = 200,
    *,
    is_tenant_scoped: bool = False,
) -> JSONResponse:
    """Run the work in a thread and respond with its result.

    :param is_tenant_scoped: the work is limited to the caller's tenant; all other work concerns every tenant.
    """
    if caller.tenant is not None and not is_tenant_scoped:
        raise Problem(403, "forbidden", "the learning loop spans all tenants; use an admin key without a tenant")
    learning: Learning | None = getattr(request.app.state, "learning", None)
    if learning is None:
        raise NotFoundError("this server has no learning loop; start it with --learning", code="no_learning")
    state = request.app.state
    # Mining, evaluation and the like take as long as they take; a client that cannot wait sends x-deadline-ms.
    deadline = state.engine.deadline(request, has_timeout=request.method == "GET")
    try:
        return JSONResponse(await run_in_store(state.learning_pool, lambda: work(learning), deadline), status_code)
    except ArtifactError as error:
        raise Problem(409, "unusable_version", str(error)) from error
