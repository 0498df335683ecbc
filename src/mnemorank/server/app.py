"""create_app: the server as an ASGI app."""

from __future__ import annotations

import random
from functools import partial
from importlib import import_module
from types import ModuleType

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from mnemorank._version import __version__
from mnemorank.server.api import ROUTES
from mnemorank.server.api.admin import Catalogue
from mnemorank.server.auth import read_keys
from mnemorank.server.engine import Engine
from mnemorank.server.errors import ErrorWriter, install
from mnemorank.server.event_log import EventLog, open_store_log
from mnemorank.server.lifespan import lifespan
from mnemorank.server.middleware import BodyGuard, HostGuard, OriginGuard, RequestContext
from mnemorank.server.model_slot import ModelSlot, load_served
from mnemorank.server.observability import Metrics, Tracing, open_tracing
from mnemorank.server.settings import Settings

DESCRIPTION = """Rerank documents in the dialects of Cohere, Jina, Voyage, text-embeddings-inference, vLLM and infinity,
and memories in mnemorank's own. Scores of the dialects are the model's calibrated relevance in [0, 1]."""


def create_app(
    settings: Settings | None = None, *, event_log: EventLog | None = None, tracing: Tracing | None = None
) -> FastAPI:
    """The app. Its model is loaded when it starts.

    `app.state` has what routes use: `settings`, `keys`, `slot`, `catalogue`, `engine`, `metrics`, `event_log`,
    `learning`, `exploration`.

    :param event_log: where events of the native route go; by default what `settings.store` says, if anything.
    :param tracing: by default what `settings.otel` says.
    """
    settings = settings or Settings()
    settings.check_auth()
    settings.check_folders()
    # FastAPI's own pages load their scripts from elsewhere; routes/docs.py has ours.
    app = FastAPI(
        title="mnemorank",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        # A redirect names a scheme and a host, and behind a proxy the wrong ones: `/rerank/` is a plain 404.
        redirect_slashes=False,
        redoc_url=None,
    )
    state = app.state
    state.learning = None
    if settings.learning is not None:
        from mnemorank.server.learning import LearningLog, open_learning, with_learning

        state.learning = open_learning(settings)
        settings = with_learning(settings, state.learning)
        event_log = event_log if event_log is not None else LearningLog(state.learning)
    state.settings = settings
    state.exploration = random.Random(settings.explore_seed)
    state.keys = read_keys(settings.keys) if settings.keys else None
    state.metrics = Metrics(lambda: state.slot.current.scorer.waiting_pairs if state.slot.current else 0)
    state.slot = ModelSlot(partial(load_served, settings=settings, metrics=state.metrics), state.metrics)
    state.catalogue = Catalogue(settings)
    tracing = tracing or (open_tracing() if settings.otel else Tracing())
    state.engine = Engine(settings, state.slot, tracing)
    state.event_log = event_log if event_log is not None else _event_log(settings)

    modules = [import_module(f"mnemorank.server.api.{name}") for name in ROUTES]
    for module in modules:
        app.include_router(module.router)
    writers = _writers(modules)
    install(app, writers)
    if state.keys is None:
        app.add_middleware(OriginGuard, settings=settings, writers=writers)
    app.add_middleware(BodyGuard, settings=settings, keys=state.keys, writers=writers)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    if settings.is_loopback and state.keys is None:
        app.add_middleware(HostGuard, settings=settings, writers=writers)
    app.add_middleware(RequestContext, metrics=state.metrics, tracing=tracing, writers=writers)
    return app


def _event_log(settings: Settings) -> EventLog | None:
    if settings.store is None:
        return None
    return open_store_log(settings.store)


def _writers(modules: list[ModuleType]) -> dict[str, ErrorWriter]:
    return {path: write for module in modules for path, write in getattr(module, "ERRORS", {}).items()}
