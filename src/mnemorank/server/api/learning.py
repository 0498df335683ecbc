"""The learning loop over HTTP: what `mnemorank learn` does, for whoever holds an admin key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from mnemorank.errors import ArtifactError, InputError
from mnemorank.server.api.schemas import ERROR_EXAMPLE, Flag, NativeModel, Text, dialect_router, error_responses
from mnemorank.server.auth import Admin, Caller
from mnemorank.server.errors import Problem
from mnemorank.server.learning import stored

T = TypeVar("T")
router = dialect_router("learning")
RESPONSES = error_responses(ERROR_EXAMPLE, 404, 409)

VersionName = Annotated[Text, Field(pattern=r"^\d{4,9}$")]
RunId = Annotated[str, Path(pattern=r"^[0-9a-f-]{1,40}$")]
Count = Annotated[int, Query(ge=1, le=1_000_000)]
Why = Annotated[Text, Field(max_length=1000)]


class TrainRequest(NativeModel):
    promote: Flag = Field(False, description="Put the candidate in service if it passes the gate")


class EvaluateRequest(NativeModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"version": "0002"}})

    version: VersionName


class PromoteRequest(EvaluateRequest):
    force: Flag = Field(False, description="Whatever the gate said")
    why: Why = ""


class RollbackRequest(NativeModel):
    version: VersionName | None = Field(None, description="Any version; the one before the current by default")
    why: Why = ""


@router.get("/v1/learning/status", responses=RESPONSES)
async def status(request: Request, caller: Admin) -> JSONResponse:
    """Where the loop stands: versions, events, examples, the training under way."""
    return await _answer(request, caller, lambda learning: learning.loop.status())


@router.post("/v1/learning/mine", responses=RESPONSES)
async def mine(request: Request, caller: Admin) -> JSONResponse:
    """Make examples of the feedback."""

    def work(learning: Any) -> dict[str, Any]:
        mined = learning.loop.mine()
        return {"examples": len(mined.examples), "dropped": {k: n for k, n in mined.dropped.items() if n}}

    return await _answer(request, caller, work)


@router.post("/v1/learning/train", responses=RESPONSES, status_code=202)
async def train(request: Request, body: TrainRequest, caller: Admin) -> JSONResponse:
    """Begin to train a candidate on the mined examples, in a process of its own."""

    def work(learning: Any) -> dict[str, Any]:
        return dict(learning.loop.train(promote=body.promote, who=caller.name)[0].summary())

    return await _answer(request, caller, work, 202)


@router.post("/v1/learning/run", responses=RESPONSES, status_code=202)
async def run(request: Request, caller: Admin) -> JSONResponse:
    """Mine, begin to train, and promote the candidate if the gate lets it."""
    return await _answer(request, caller, lambda learning: learning.begin_run(caller.name).summary(), 202)


@router.post("/v1/learning/evaluate", responses=RESPONSES)
async def evaluate(request: Request, body: EvaluateRequest, caller: Admin) -> JSONResponse:
    """Measure a version against the current one and ask the gate."""
    return await _answer(
        request, caller, lambda learning: learning.loop.evaluate(body.version, who=caller.name).to_dict()
    )


@router.post("/v1/learning/promote", responses=RESPONSES)
async def promote(request: Request, body: PromoteRequest, caller: Admin) -> JSONResponse:
    """Put a version in service that passed the gate; the server swaps to it within a second or two."""

    def work(learning: Any) -> dict[str, Any]:
        version = learning.loop.promote(body.version, who=caller.name, why=body.why, force=body.force)
        return {"current": version.name}

    return await _answer(request, caller, work)


@router.post("/v1/learning/rollback", responses=RESPONSES)
async def rollback(request: Request, body: RollbackRequest, caller: Admin) -> JSONResponse:
    """Put an earlier version back in service."""

    def work(learning: Any) -> dict[str, Any]:
        return {"current": learning.loop.registry.rollback(body.version, who=caller.name, why=body.why).name}

    return await _answer(request, caller, work)


@router.get("/v1/learning/history", responses=RESPONSES)
async def history(request: Request, caller: Admin) -> JSONResponse:
    """Who did what, and why, oldest first."""
    return await _answer(request, caller, lambda learning: {"entries": learning.loop.registry.history.entries()})


@router.get("/v1/learning/runs", responses=RESPONSES)
async def runs(request: Request, caller: Admin) -> JSONResponse:
    """All trainings, oldest first."""
    return await _answer(
        request, caller, lambda learning: {"runs": [one.summary() for one in learning.loop.runs.all()]}
    )


@router.get("/v1/learning/runs/{run_id}", responses=RESPONSES)
async def one_run(request: Request, run_id: RunId, caller: Admin) -> JSONResponse:
    """A training, with its progress."""

    def work(learning: Any) -> dict[str, Any]:
        found = learning.loop.runs.get(run_id)
        return {**found.summary(), "progress": learning.loop.runs.progress(run_id)}

    return await _answer(request, caller, work)


@router.get("/v1/learning/runs/{run_id}/log", responses=RESPONSES)
async def log(request: Request, run_id: RunId, caller: Admin, last: Count = 200) -> JSONResponse:
    """The last lines that a training printed."""
    return await _answer(request, caller, lambda learning: {"lines": learning.loop.runs.log(run_id, last)})


@router.post("/v1/learning/runs/{run_id}/cancel", responses=RESPONSES)
async def cancel(request: Request, run_id: RunId, caller: Admin) -> JSONResponse:
    """Stop a training for good."""
    return await _answer(request, caller, lambda learning: learning.loop.runs.cancel(run_id).summary())


@router.get("/v1/learning/reports/unused", responses=RESPONSES)
async def unused(request: Request, caller: Admin, least: Count = 10) -> JSONResponse:
    """Memories shown at least so often and never used."""

    def work(learning: Any) -> dict[str, Any]:
        from mnemorank.learning.reports import unused_memories

        return {
            "memories": [
                asdict(one) for one in unused_memories(learning.loop.store.events(tenant=caller.tenant), least)
            ]
        }

    return await _answer(request, caller, work, within_tenant=True)


@router.get("/v1/learning/reports/no-hits", responses=RESPONSES)
async def nothing_found(request: Request, caller: Admin, least: Count = 1) -> JSONResponse:
    """Queries asked at least so often that found nothing."""

    def work(learning: Any) -> dict[str, Any]:
        from mnemorank.learning.reports import no_hits

        return {"queries": [asdict(one) for one in no_hits(learning.loop.store.events(tenant=caller.tenant), least)]}

    return await _answer(request, caller, work, within_tenant=True)


@router.get("/v1/learning/shadow/{version}", responses=RESPONSES)
async def shadow(request: Request, version: Annotated[str, Path(pattern=r"^\d{4,9}$")], caller: Admin) -> JSONResponse:
    """How a candidate that scored live traffic in the shadow compares with what was shown, by later feedback."""

    def work(learning: Any) -> dict[str, Any]:
        found = learning.loop.shadow_result(version)
        if found is None:
            raise InputError(f"no event that {version!r} scored in the shadow has feedback yet", field="version")
        return asdict(found)

    return await _answer(request, caller, work)


async def _answer(
    request: Request,
    caller: Caller,
    work: Callable[[Any], T],
    status_code: int = 200,
    *,
    within_tenant: bool = False,
) -> JSONResponse:
    """Do the work in a thread. What the loop refuses is 404 where something does not exist, else 409.

    :param within_tenant: the work keeps to the tenant of the caller's key; all else concerns every tenant.
    """
    if caller.tenant is not None and not within_tenant:
        raise Problem(403, "forbidden", "the learning loop is of all tenants; it takes an admin key without a tenant")
    learning = getattr(request.app.state, "learning", None)
    if learning is None:
        raise Problem(404, "no_learning", "this server has no learning loop; start it with --learning DIR")
    try:
        return JSONResponse(await stored(lambda: work(learning)), status_code)
    except (InputError, ArtifactError) as error:
        is_missing = any(words in str(error) for words in ("no version", "no run"))
        raise Problem(404 if is_missing else 409, "not_found" if is_missing else "refused", str(error)) from error
