"""Administration: health, readiness, info, metrics, and the served model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from mnemorank._version import __version__
from mnemorank.artifact.resolve import bundled_models
from mnemorank.errors import NotFoundError
from mnemorank.server.api.schemas import ERROR_EXAMPLE, NativeModel, Text, dialect_router, error_responses
from mnemorank.server.auth import Admin, Reader
from mnemorank.server.errors import Problem, SwapError
from mnemorank.server.model_slot import ModelSlot, ServedModel
from mnemorank.server.observability import CONTENT_TYPE, Metrics
from mnemorank.server.settings import ServerSettings

router = dialect_router("service")


class SwapRequest(NativeModel):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"model": "mini"}})

    model: Annotated[Text, Field(min_length=1, max_length=128)] | None = Field(
        None, description="A name from GET /v1/models; the configured model is reloaded by default"
    )


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health() -> dict[str, str]:
    """Return that the process is alive."""
    return {"status": "ok"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses=error_responses(ERROR_EXAMPLE))
async def ready(request: Request) -> dict[str, str]:
    """Return whether a model is loaded, checked and served."""
    served = _served(request)
    return {"status": "ready", "model": served.label}


@router.get("/info", responses=error_responses(ERROR_EXAMPLE))
async def info(request: Request, caller: Reader) -> dict[str, Any]:
    """Return the model and the limits, in the fields of text-embeddings-inference and our own."""
    served, settings = _served(request), request.app.state.settings
    manifest = served.model.manifest
    return {
        "model_id": manifest.name,
        "model_sha": served.model.fingerprint,
        "model_dtype": manifest.quantization if manifest.quantization != "none" else "float32",
        "model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
        "max_concurrent_requests": settings.max_requests,
        "max_input_length": manifest.max_length,
        "max_batch_tokens": settings.token_budget,
        "max_batch_requests": None,
        "max_client_batch_size": settings.max_documents,
        "auto_truncate": False,
        "version": __version__,
        "model_version": manifest.version,
        "family": manifest.family,
        "format": manifest.format,
        "template": manifest.template,
        "abstain_below": manifest.abstain_below,
        "limits": {
            name: getattr(settings, name)
            for name in ("max_body_bytes", "max_documents", "max_document_chars", "max_query_chars", "queue_pairs")
        },
    }


@router.get("/metrics", response_class=Response, responses=error_responses(ERROR_EXAMPLE))
async def metrics(request: Request, caller: Reader) -> Response:
    """Return Prometheus metrics."""
    collected: Metrics = request.app.state.metrics
    return Response(collected.text(), headers={"content-type": CONTENT_TYPE})


@router.get("/v1/models", responses=error_responses(ERROR_EXAMPLE))
async def models(request: Request, caller: Reader) -> dict[str, Any]:
    """Return the served model and the names of the models that can be swapped in."""
    served = _served(request)
    catalog: ModelCatalog = request.app.state.catalog
    manifest = served.model.manifest
    return {
        "object": "list",
        "data": [
            {
                "id": manifest.name,
                "object": "model",
                "created": int(served.loaded_at),
                "owned_by": "mnemorank",
                "version": manifest.version,
                "fingerprint": served.model.fingerprint,
            }
        ],
        "available": await asyncio.to_thread(catalog.names),
    }


@router.post("/v1/models/swap", responses=error_responses(ERROR_EXAMPLE, 404, 409))
async def swap(request: Request, body: SwapRequest, caller: Admin) -> JSONResponse:
    """Load, check and warm up a model, then serve it. A model that fails is refused, and the old one stays."""
    if caller.tenant is not None:
        raise Problem(403, "forbidden", "the model serves all tenants; use an admin key that is not bound to a tenant")
    state = request.app.state
    slot: ModelSlot = state.slot
    catalog: ModelCatalog = state.catalog
    # Loading takes as long as it takes; a client that cannot wait sends x-deadline-ms.
    deadline = state.engine.deadline(request, has_timeout=False)
    old = slot.current
    source = await asyncio.to_thread(catalog.find, body.model)
    if source is None:
        raise NotFoundError("no such model; GET /v1/models lists them", field="model", code="unknown_model")
    try:
        new = await state.swap_pool.run(lambda: slot.swap(source), deadline)
    except SwapError as error:
        raise Problem(409, "model_refused", str(error), field="model") from error
    return JSONResponse({"model": new.label, "previous": old.label if old else None})


def _served(request: Request) -> ServedModel:
    slot: ModelSlot = request.app.state.slot
    if slot.current is None:
        raise Problem(503, "no_model", "no model is loaded", retry_after=1)
    return slot.current


class ModelCatalog:
    """The models that this server may serve."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings

    def names(self) -> list[str]:
        """Return the names that can be swapped in."""
        return sorted(self.sources())

    def find(self, name: str | None = None) -> str | Path | None:
        """Return what to load for a name, or None if there is no such model; by default, the model to serve."""
        return self.default() if name is None else self.sources().get(name)

    def default(self) -> str | Path:
        """Return the registry's current version if there is one, else the configured model."""
        return self.registered() or self._settings.model

    def registered(self) -> Path | None:
        """Return the registry's current version."""
        return current_version(self._settings.registry) if self._settings.registry else None

    def sources(self) -> dict[str, str | Path]:
        """Return what to load, by name."""
        sources: dict[str, str | Path] = {name: name for name in bundled_models()}
        folder = self._settings.models_dir
        if folder is not None and folder.is_dir():
            sources.update({entry.name: entry for entry in folder.iterdir() if entry.is_dir()})
        return sources


def current_version(registry: Path) -> Path | None:
    """Return the folder of the registry's current version; None if nothing was promoted yet.

    `current` is a link to the folder, or a file with its name.
    """
    pointer = registry / "current"
    if pointer.is_dir():
        return pointer.resolve()
    if pointer.is_file():
        name = pointer.read_text(encoding="utf-8").strip()
        folders = (registry / name, registry / "versions" / name)
        return next((folder.resolve() for folder in folders if name and folder.is_dir()), None)
    return None
