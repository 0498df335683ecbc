"""`/console`: the web page for people, and what it needs beyond the other routes. Its source is in `console/`."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from mnemorank import Reranker
from mnemorank.errors import MnemorankError, NotFoundError
from mnemorank.memory.files import parse_memories
from mnemorank.model.model import Model
from mnemorank.scorers.states import state_scorer
from mnemorank.server.api.admin import ModelCatalog
from mnemorank.server.api.memories import check_limits, ranking_response
from mnemorank.server.api.schemas import (
    ERROR_EXAMPLE,
    MemoriesRequest,
    Name,
    NativeModel,
    Text,
    dialect_router,
    error_responses,
)
from mnemorank.server.auth import Admin, Caller, Reader, authenticate
from mnemorank.server.errors import Problem
from mnemorank.server.requests import check_count

router = dialect_router("console")

_ASSETS = files("mnemorank") / "assets"
_FILES = {
    "app.js": (_ASSETS / "console" / "app.js", "text/javascript"),
    "app.css": (_ASSETS / "console" / "app.css", "text/css"),
    "icon.svg": (_ASSETS / "console" / "icon.svg", "image/svg+xml"),
    "sample.jsonl": (_ASSETS / "samples" / "memories.jsonl", "application/x-ndjson"),
}
_HEADERS = {
    # Texts of memories are never markup. Should one become markup by a mistake, the browser still runs nothing of it.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    # An upgraded server must not run with the script of its predecessor.
    "cache-control": "no-cache",
}
_VERSION_PREFIX = "version "


class FileRequest(NativeModel):
    name: Name = Field("memories", description="Name of the file; its suffix tells the format")
    content: Text = Field(description="JSON Lines, a JSON array or CSV")


class CompareRequest(MemoriesRequest):
    model: Name = Field(description="A name from GET /v1/console/session")


@router.get("/console", include_in_schema=False)
def page() -> Response:
    """Return the page. All its URLs are relative, so that it works behind a proxy that adds a prefix."""
    content = (_ASSETS / "console" / "index.html").read_bytes()
    return Response(content, media_type="text/html", headers=_HEADERS)


@router.get("/console/{name}", include_in_schema=False)
def asset(name: str) -> Response:
    """Return a file of the page."""
    if name not in _FILES:
        raise NotFoundError("no such file")
    path, media_type = _FILES[name]
    return Response(path.read_bytes(), media_type=media_type, headers=_HEADERS)


@router.get("/v1/console/session", responses=error_responses(ERROR_EXAMPLE))
async def session(request: Request, caller: Annotated[Caller, Depends(authenticate)]) -> JSONResponse:
    """Return who the caller is, and what the server offers."""
    state = request.app.state
    served = state.slot.current
    is_admin = "admin" in caller.scopes and caller.tenant is None
    return JSONResponse(
        {
            "caller": caller.name,
            "scopes": sorted(caller.scopes),
            "tenant": caller.tenant,
            "has_keys": state.keys is not None,
            "has_store": getattr(state.event_log, "store", None) is not None,
            "has_learning": state.learning is not None,
            "has_index": state.index is not None,
            "model": served.label if served else None,
            "models": sorted(_sources(request)) if is_admin else [],
            "max_documents": state.settings.max_documents,
        }
    )


@router.post("/v1/console/memories", responses=error_responses(ERROR_EXAMPLE))
async def read_file(request: Request, body: FileRequest, caller: Reader) -> JSONResponse:
    """Read the content of a file of memories, as `mnemorank rerank` does."""
    state = request.app.state

    def work() -> dict[str, Any]:
        warnings: list[str] = []
        limit = state.settings.max_documents
        memories = parse_memories(body.content, body.name, on_error="skip", report=warnings.append, max_count=limit)
        check_count(len(memories), state.settings, "content")
        return {"memories": [memory.to_dict() for memory in memories], "warnings": list(dict.fromkeys(warnings))}

    return JSONResponse(await state.parser_pool.run(work, state.engine.deadline(request)))


@router.post("/v1/console/compare", responses=error_responses(ERROR_EXAMPLE, 404, 409))
async def compare(request: Request, body: CompareRequest, caller: Admin) -> JSONResponse:
    """Rank memories with a model that is not served. Nothing is recorded, and the served model stays."""
    if caller.tenant is not None:
        raise Problem(403, "forbidden", "models are shared by all tenants; use an admin key without a tenant")
    state = request.app.state
    deadline = state.engine.deadline(request, body.deadline_ms)
    source = _sources(request).get(body.model)
    if source is None:
        raise NotFoundError("no such model", field="model", code="unknown_model")

    def work() -> dict[str, Any]:
        check_limits(body, state.settings)
        model = state.comparison.load(source)
        ranking = Reranker(model).rerank_within(deadline, **body.ranking_arguments())
        return {"event_id": None, **ranking_response(ranking, model, body)}

    # The pool has one thread: requests take turns, and none closes the model that another one uses.
    return JSONResponse(await state.swap_pool.run(work, deadline))


@router.get("/v1/console/health", responses=error_responses(ERROR_EXAMPLE))
async def health(request: Request, caller: Reader) -> JSONResponse:
    """Return the metrics of the last hour."""
    state = request.app.state
    served = state.slot.current
    states = state_scorer(served.model.scorer) if served else None
    cache = None
    if states is not None:
        cache = {"states": len(states.cache), "bytes": states.cache.size, "max_bytes": states.cache.max_bytes}
    return JSONResponse(
        {
            **state.history.to_dict(),
            "model": served.label if served else None,
            "loaded_at": served.loaded_at if served else None,
            "has_score_cache": bool(state.settings.score_cache),
            "prepared": cache,
        }
    )


class ComparisonModel:
    """The model that was compared last, kept for the next comparison. Not thread-safe."""

    def __init__(self) -> None:
        self._source: str | Path | None = None
        self._model: Model | None = None

    def load(self, source: str | Path) -> Model:
        if self._model is None or source != self._source:
            self.close()
            try:
                self._model = Model.load(source)
            except MnemorankError as error:
                raise Problem(409, "model_refused", str(error), field="model") from error
            self._source = source
        return self._model

    def close(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            model.close()


def _sources(request: Request) -> dict[str, str | Path]:
    """Return the models that can be compared, by name: those of the catalog, and the versions of the learning loop."""
    catalog: ModelCatalog = request.app.state.catalog
    sources = catalog.sources()
    if request.app.state.learning is not None:
        versions = request.app.state.learning.loop.versions.all()
        sources.update({f"{_VERSION_PREFIX}{version.name}": version.path for version in versions})
    return sources
