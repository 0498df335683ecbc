"""The server about itself: health, readiness, info, metrics, and the models it serves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse
from pydantic import ConfigDict, Field

from mnemorank._version import __version__
from mnemorank.artifact.resolve import bundled_models
from mnemorank.server.api.schemas import ERROR_EXAMPLE, NativeShape, Text, dialect_router, errors
from mnemorank.server.auth import Admin, Reader
from mnemorank.server.errors import Problem, SwapError
from mnemorank.server.model_slot import ModelSlot, Served
from mnemorank.server.observability import CONTENT_TYPE, Metrics
from mnemorank.server.settings import Settings

router = dialect_router("service")


class SwapRequest(NativeShape):
    model_config = ConfigDict(extra="forbid", json_schema_extra={"example": {"model": "mini"}})

    model: Annotated[Text, Field(min_length=1, max_length=128)] | None = Field(
        None, description="A name of GET /v1/models; without one, the configured model is loaded again"
    )


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health() -> dict[str, str]:
    """The process is alive."""
    return {"status": "ok"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready", responses=errors(ERROR_EXAMPLE))
async def ready(request: Request) -> dict[str, str]:
    """A model is loaded, was probed, and is served."""
    served = _served(request)
    return {"status": "ready", "model": served.label}


@router.get("/info", responses=errors(ERROR_EXAMPLE))
async def info(request: Request, caller: Reader) -> dict[str, Any]:
    """The model and the limits; the fields of text-embeddings-inference, and ours."""
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


@router.get("/metrics", response_class=Response, responses=errors(ERROR_EXAMPLE))
async def metrics(request: Request, caller: Reader) -> Response:
    """Prometheus metrics."""
    collected: Metrics = request.app.state.metrics
    return Response(collected.text(), headers={"content-type": CONTENT_TYPE})


@router.get("/v1/models", responses=errors(ERROR_EXAMPLE))
async def models(request: Request, caller: Reader) -> dict[str, Any]:
    """The model served, and the names that can be swapped in."""
    served = _served(request)
    catalogue: Catalogue = request.app.state.catalogue
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
        "available": await asyncio.to_thread(catalogue.names),
    }


@router.post("/v1/models/swap", responses=errors(ERROR_EXAMPLE, 404, 409))
async def swap(request: Request, body: SwapRequest, caller: Admin) -> JSONResponse:
    """Load a model beside the served one, check and warm it, then serve it. A bad one is refused; the old one stays."""
    if caller.tenant is not None:
        raise Problem(403, "forbidden", "the model serves all tenants; a swap takes an admin key without a tenant")
    slot: ModelSlot = request.app.state.slot
    catalogue: Catalogue = request.app.state.catalogue
    old = slot.current
    source = await asyncio.to_thread(catalogue.find, body.model)
    if source is None:
        raise Problem(404, "unknown_model", "model: there is no such model; GET /v1/models lists them", field="model")
    try:
        new = await asyncio.to_thread(slot.swap, source)
    except SwapError as error:
        raise Problem(409, "model_refused", str(error), field="model") from error
    return JSONResponse({"model": new.label, "previous": old.label if old else None})


def _served(request: Request) -> Served:
    slot: ModelSlot = request.app.state.slot
    if slot.current is None:
        raise Problem(503, "no_model", "no model is loaded yet", retry_after=1)
    return slot.current


class Catalogue:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def names(self) -> list[str]:
        return sorted(self._listed())

    def find(self, name: str | None = None) -> str | Path | None:
        """What to load for a name; None if there is no such model. Without a name: the one to serve by default."""
        return self.default() if name is None else self._listed().get(name)

    def default(self) -> str | Path:
        """The registry's current version if there is one, else the configured model."""
        return self.registered() or self._settings.model

    def registered(self) -> Path | None:
        """The registry's current version."""
        return current_version(self._settings.registry) if self._settings.registry else None

    def _listed(self) -> dict[str, str | Path]:
        listed: dict[str, str | Path] = {name: name for name in bundled_models()}
        folder = self._settings.models_dir
        if folder is not None and folder.is_dir():
            listed.update({entry.name: entry for entry in folder.iterdir() if entry.is_dir()})
        return listed


def current_version(registry: Path) -> Path | None:
    """The folder that the registry's `current` names; None if nothing was promoted yet.

    `current` is a link to a version's folder, or a file that holds its name.
    """
    pointer = registry / "current"
    if pointer.is_dir():
        return pointer.resolve()
    if pointer.is_file():
        name = pointer.read_text(encoding="utf-8").strip()
        places = (registry / name, registry / "versions" / name)
        return next((place.resolve() for place in places if name and place.is_dir()), None)
    return None
