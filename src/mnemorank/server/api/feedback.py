"""Feedback routes: signals on a ranking, deletion, and export of a user's data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from tempfile import SpooledTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ConfigDict, Field

from mnemorank.errors import InputError, NotFoundError
from mnemorank.learning.events import DEFAULT_TENANT, RerankEvent
from mnemorank.server.api.schemas import (
    ERROR_EXAMPLE,
    MAX_INTEGER,
    Name,
    NativeModel,
    Number,
    Text,
    dialect_router,
    error_responses,
)
from mnemorank.server.auth import Admin, Caller, check_user, requires, resolve_tenant
from mnemorank.server.learning import run_in_store

if TYPE_CHECKING:
    from mnemorank.learning.signals import Signal
    from mnemorank.learning.store.events import EventStore

router = dialect_router("learning")
T = TypeVar("T")

FeedbackCaller = Annotated[Caller, Depends(requires("feedback"))]
NameParameter = Annotated[str, Query(min_length=1, max_length=256)]
Kind = Literal[
    "click", "thumbs_up", "thumbs_down", "stars", "note", "cited", "used", "ignored", "contradicted"
]  # fmt: skip
MAX_SIGNALS = 1000
_DELETE_PARAMETERS = ("event", "memory", "tenant", "user")
_EXPORT_MEMORY_BYTES = 4 * 1024 * 1024
_EXPORT_CHUNK_BYTES = 64 * 1024


class SignalBody(NativeModel):
    kind: Kind
    memory_id: Name | None = Field(
        None, description="Id of the memory; without id and rank, the signal is about the answer as a whole"
    )
    rank: Annotated[int, Field(strict=True, ge=1, le=MAX_INTEGER)] | None = Field(
        None, description="Rank of the memory in the response, from 1; for memories without an id"
    )
    value: Number | None = Field(None, description="Number of stars, 1 to 5")
    note: Annotated[Text, Field(max_length=10_000)] | None = None


class FeedbackRequest(NativeModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "event_id": "6f1c…",
                "user": "ann",
                "signals": [{"kind": "cited", "memory_id": "m2"}, {"kind": "stars", "rank": 1, "value": 5}],
            }
        },
    )

    event_id: Name
    user: Name | None = Field(None, description="Who gives the feedback; by default the user of the request")
    signals: Annotated[list[SignalBody], Field(fail_fast=True, min_length=1, max_length=MAX_SIGNALS)]


@router.post("/v1/feedback", responses=error_responses(ERROR_EXAMPLE, 404, 409))
async def feedback(request: Request, body: FeedbackRequest, caller: FeedbackCaller) -> JSONResponse:
    """Report which memories helped. The signals are on disk when this responds; repeated ones count once.

    By default only the user who asked may give feedback on an answer.
    """
    store = _store(request)
    check_user(caller, body.user, request.headers)
    max_users = request.app.state.settings.max_feedback_users

    def work() -> int:
        event = _find_event(store, body.event_id, caller.tenant)
        if body.user is None:
            check_user(caller, event.user, request.headers)  # the feedback would be that of the user who asked
        signals = []
        for index, signal in enumerate(body.signals):
            try:
                signals.append(_to_signal(store, event, signal, body.user, caller))
            except InputError as error:
                field = ".".join(filter(None, ("signals", str(index), error.field)))
                raise InputError(error.message, field=field, code=error.code) from None
        return store.add_signals(signals, max_users=max_users)

    new = await _run(request, work, "nothing was stored")
    return JSONResponse({"stored": len(body.signals), "new": new})


def _to_signal(store: EventStore, event: RerankEvent, signal: SignalBody, user: str | None, caller: Caller) -> Signal:
    from mnemorank.learning.signals import ANONYMOUS, Signal

    rank = signal.rank
    if signal.memory_id is not None:
        rank = store.rank_of(event.id, signal.memory_id, signal.rank)
        if signal.rank not in (None, rank):
            raise InputError(f"is {signal.rank}, but the memory is at rank {rank}; give only one of them", field="rank")
    elif rank is not None and rank not in {shown.rank for shown in event.shown}:
        raise InputError(f"event {event.id!r} shows no memory at rank {rank}", field="rank")
    value = None if signal.value is None else float(signal.value)
    return Signal(event.id, signal.kind, rank, value, signal.note, user or ANONYMOUS, caller=caller.name)


@router.delete("/v1/feedback", responses=error_responses(ERROR_EXAMPLE, 404))
async def delete(
    request: Request,
    caller: Admin,
    event: NameParameter | None = None,
    memory: NameParameter | None = None,
    user: NameParameter | None = None,
    tenant: NameParameter | None = None,
) -> JSONResponse:
    """Delete an event, memory, user or tenant from events, signals and mined examples.

    Give `event`, or `memory` or `user` with their `tenant`, or `tenant` alone. The response names the model versions
    that were trained on deleted data.
    """
    unknown = sorted(set(request.query_params) - set(_DELETE_PARAMETERS))
    if unknown:  # if it were ignored, a misspelled `user` would delete the whole tenant
        expected = ", ".join(_DELETE_PARAMETERS)
        raise InputError(f"unknown parameter; expected one of {expected}", field=unknown[0], code="unknown")
    named = [(scope, name) for scope, name in (("event", event), ("memory", memory), ("user", user)) if name]
    if len(named) > 1 or not (named or tenant):
        raise InputError("expected one of event, memory and user, or only a tenant", field="event")
    owner = _tenant(caller, tenant)
    scope, name = named[0] if named else ("tenant", owner)
    store = _store(request)

    def work() -> Any:
        from mnemorank.learning.store.deletion import delete_by_scope

        if scope == "event":
            _find_event(store, name, resolve_tenant(caller, tenant), "event")
        learning = getattr(request.app.state, "learning", None)
        return learning.loop.delete(scope, name, owner) if learning else delete_by_scope(store, scope, name, owner)

    deleted = await _run(request, work, "nothing was deleted")
    return JSONResponse(
        {
            "events": deleted.events,
            "signals": deleted.signals,
            "examples": deleted.examples,
            "models": deleted.models,
        }
    )


@router.get("/v1/feedback/export", responses=error_responses(ERROR_EXAMPLE), response_class=StreamingResponse)
async def export(
    request: Request, caller: Admin, user: NameParameter, tenant: NameParameter | None = None
) -> StreamingResponse:
    """Export everything stored about a user as JSON Lines. If the store fails midway, the response is an error."""
    store, owner = _store(request), _tenant(caller, tenant)

    def work() -> SpooledTemporaryFile[bytes]:
        from mnemorank.learning.store.deletion import export_user

        file = SpooledTemporaryFile(_EXPORT_MEMORY_BYTES)  # noqa: SIM115
        try:
            for record in export_user(store, user, owner):
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return file

    return StreamingResponse(_chunks(await _run(request, work)), media_type="application/x-ndjson")


def _chunks(file: SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_EXPORT_CHUNK_BYTES):
            yield chunk


async def _run(request: Request, work: Callable[[], T], outcome: str | None = None) -> T:
    state = request.app.state
    return await run_in_store(state.store_pool, work, state.engine.deadline(request), outcome=outcome)


def _store(request: Request) -> EventStore:
    store: EventStore | None = getattr(request.app.state.event_log, "store", None)
    if store is None:
        raise NotFoundError("this server has no event store; start it with --store or --learning", code="no_store")
    return store


def _tenant(caller: Caller, tenant: str | None) -> str:
    resolved = resolve_tenant(caller, tenant)
    return DEFAULT_TENANT if resolved is None else resolved


def _find_event(store: EventStore, event_id: str, tenant: str | None, field: str = "event_id") -> RerankEvent:
    """Return an event. One of another tenant is reported as unknown, so that its existence stays private.

    :param tenant: None for any tenant.
    :param field: the name of the parameter, for errors.
    """
    stored = store.event(event_id)
    if stored is None or (tenant is not None and stored[0].tenant != tenant):
        raise NotFoundError("unknown event", field=field, code="unknown_event")
    return stored[0]
