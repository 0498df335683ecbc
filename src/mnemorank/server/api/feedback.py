"""Feedback: signals on what a rerank showed, deletion, and export of a user's data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from tempfile import SpooledTemporaryFile
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import ConfigDict, Field

from mnemorank.errors import InputError
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
from mnemorank.server.auth import Admin, Caller, requires
from mnemorank.server.errors import Problem
from mnemorank.server.learning import stored

router = dialect_router("learning")

Giver = Annotated[Caller, Depends(requires("feedback"))]
Word = Annotated[str, Query(min_length=1, max_length=256)]
Kind = Literal[
    "click", "thumbs_up", "thumbs_down", "stars", "note", "cited", "used", "ignored", "contradicted"
]  # fmt: skip
MOST_SIGNALS = 1000
_SCOPES = {"event", "memory", "user", "tenant"}
EXPORT_IN_MEMORY = 4 * 1024 * 1024
EXPORT_PART = 64 * 1024


class SignalShape(NativeModel):
    kind: Kind
    memory_id: Name | None = Field(None, description="The memory it is about, by its id; without one, the whole answer")
    rank: Annotated[int, Field(strict=True, ge=0, le=MAX_INTEGER)] | None = Field(
        None, description="The memory it is about, by its rank in the answer; for memories without an id of their own"
    )
    value: Number | None = Field(None, description="1 to 5, for stars")
    note: Annotated[Text, Field(max_length=10_000)] | None = None


class FeedbackRequest(NativeModel):
    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "example": {
                "event_id": "6f1c…",
                "user": "ann",
                "signals": [{"kind": "cited", "memory_id": "m2"}, {"kind": "stars", "rank": 0, "value": 5}],
            }
        },
    )

    event_id: Name
    user: Name | None = Field(None, description="Who says it; whoever asked, by default")
    signals: Annotated[list[SignalShape], Field(min_length=1, max_length=MOST_SIGNALS)]


@router.post("/v1/feedback", responses=error_responses(ERROR_EXAMPLE, 404))
async def feedback(request: Request, body: FeedbackRequest, caller: Giver) -> JSONResponse:
    """Say what helped. Signals are on disk when this answers; repeated ones count once."""
    store = _store(request)

    def work() -> int:
        event = _find(store, body.event_id, caller.tenant)
        shown = {one.position for one in event.shown}
        given = []
        for number, signal in enumerate(body.signals):
            try:
                given.append(_read(store, event.id, shown, signal, body.user))
            except InputError as error:
                place = f"signals.{number}."
                field, _, _ = str(error).partition(":")
                raise Problem(422, "invalid", f"{place}{error}", field=place + field) from None
        return int(store.signal(given))

    new = await stored(work, ", and nothing was stored")
    return JSONResponse({"stored": len(body.signals), "new": new})


def _read(store: Any, event_id: str, shown: Set[int], signal: SignalShape, user: str | None) -> Any:
    """A signal as the store takes it. What is wrong with it is told by the names of the request.

    :param shown: the ranks that the event has.
    """
    from mnemorank.learning.signals import ANONYMOUS, WHOLE_EVENT, Signal

    position = signal.rank if signal.rank is not None else WHOLE_EVENT
    if signal.memory_id is not None:
        position = store.position_of(event_id, signal.memory_id, signal.rank)
        if signal.rank not in (None, position):
            said = f"is {signal.rank}, but the memory of memory_id was shown at rank {position}"
            raise InputError(f"{said}; give one of them", field="rank")
    elif signal.rank is not None and signal.rank not in shown:
        raise InputError(f"the event {event_id!r} showed no memory at rank {signal.rank}", field="rank")
    value = None if signal.value is None else float(signal.value)
    return Signal(event_id, signal.kind, position, value, signal.note, user or ANONYMOUS)


@router.delete("/v1/feedback", responses=error_responses(ERROR_EXAMPLE, 404))
async def forget(
    request: Request,
    caller: Admin,
    event: Word | None = None,
    memory: Word | None = None,
    user: Word | None = None,
    tenant: Word | None = None,
) -> JSONResponse:
    """Delete an event, or all that is stored of a memory, a user or a tenant, from events, signals and mined examples.

    Give `event`, or `memory` or `user` with their `tenant`, or `tenant` alone. The answer names the model versions that
    were trained on what was deleted.
    """
    unknown = sorted(set(request.query_params) - _SCOPES)
    if unknown:  # passed over, a misspelt user would delete the whole tenant
        message = f"{unknown[0]}: there is no such parameter; there are: {', '.join(sorted(_SCOPES))}"
        raise Problem(422, "invalid", message, field=unknown[0])
    chosen = [(scope, name) for scope, name in (("event", event), ("memory", memory), ("user", user)) if name]
    if len(chosen) > 1 or not (chosen or tenant):
        raise Problem(422, "invalid", "give one of event, memory and user, or a tenant alone", field="event")
    owner = _owner(caller, tenant)
    scope, name = chosen[0] if chosen else ("tenant", owner)
    store = _store(request)

    def work() -> Any:
        from mnemorank.learning.store.deletion import delete_by_scope

        if scope == "event":
            _find(store, name, caller.tenant or tenant, "event")
        learning = getattr(request.app.state, "learning", None)
        return learning.loop.forget(scope, name, owner) if learning else delete_by_scope(store, scope, name, owner)

    done = await stored(work, ", and nothing was deleted")
    return JSONResponse(
        {"events": done.events, "signals": done.signals, "examples": done.examples, "models": done.models}
    )


@router.get("/v1/feedback/export", responses=error_responses(ERROR_EXAMPLE), response_class=StreamingResponse)
async def export(request: Request, caller: Admin, user: Word, tenant: Word | None = None) -> StreamingResponse:
    """All that is stored of a user, as JSON Lines. It is complete: a store that fails midway is an error."""
    store, owner = _store(request), _owner(caller, tenant)

    def work() -> SpooledTemporaryFile[bytes]:
        from mnemorank.learning.store.deletion import export_user

        written = SpooledTemporaryFile(EXPORT_IN_MEMORY)  # noqa: SIM115
        try:
            for record in export_user(store, user, owner):
                written.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        except BaseException:
            written.close()
            raise
        written.seek(0)
        return written

    return StreamingResponse(_parts(await stored(work)), media_type="application/x-ndjson")


def _parts(written: SpooledTemporaryFile[bytes]) -> Iterator[bytes]:
    with written:
        while part := written.read(EXPORT_PART):
            yield part


def _store(request: Request) -> Any:
    store = getattr(request.app.state.event_log, "store", None)
    if store is None:
        raise Problem(404, "no_store", "this server keeps no events; start it with --store URL or --learning DIR")
    return store


def _owner(caller: Caller, tenant: str | None) -> str:
    from mnemorank.learning.events import DEFAULT_TENANT

    if caller.tenant is not None and tenant not in (None, caller.tenant):
        raise Problem(403, "forbidden", "tenant: is not the API key's", field="tenant")
    return caller.tenant or tenant or DEFAULT_TENANT


def _find(store: Any, event_id: str, tenant: str | None, field: str = "event_id") -> Any:
    """The event. One of another tenant is as good as none: not even its existence is told.

    :param tenant: whose it must be; None for anyone's.
    :param field: what the request calls it, for errors.
    """
    found = store.event(event_id)
    if found is None or (tenant is not None and found[0].tenant != tenant):
        raise Problem(404, "unknown_event", f"{field}: there is no such event", field=field)
    return found[0]
