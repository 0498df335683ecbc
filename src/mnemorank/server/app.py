"""`create_app`: the server as an ASGI application."""

from __future__ import annotations

import random
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from mnemorank._version import __version__
from mnemorank.server.api import ROUTES
from mnemorank.server.api.admin import ModelCatalog
from mnemorank.server.api.console import ComparisonModel
from mnemorank.server.auth import KeyFile
from mnemorank.server.engine import Engine
from mnemorank.server.errors import ErrorWriter, install_error_handlers
from mnemorank.server.event_log import EventLog, open_store_log
from mnemorank.server.lifespan import lifespan
from mnemorank.server.metrics_history import MetricsHistory
from mnemorank.server.middleware import BodyLimiter, OriginGuard, RequestLogger
from mnemorank.server.model_slot import ModelSlot, load_served
from mnemorank.server.observability import Metrics, Tracing, open_tracer_provider
from mnemorank.server.pools import ThreadPool
from mnemorank.server.settings import ServerSettings

DESCRIPTION = """Rerank documents with the APIs of Cohere, Jina, Voyage, text-embeddings-inference, vLLM and infinity,
and memories with mnemorank's own. Scores of the compatible APIs are calibrated relevance in [0, 1]."""

_PARSER_THREADS = 2
_STORE_THREADS = 8
_LEARNING_THREADS = 4
_INDEX_THREADS = 4


def create_app(
    settings: ServerSettings | None = None, *, event_log: EventLog | None = None, tracer_provider: Any = None
) -> FastAPI:
    """Create the application. It loads its model when it starts.

    `app.state` holds what the routes use: `settings`, `keys`, `slot`, `catalog`, `engine`, `metrics`, `history`,
    `comparison`, `event_log`, `learning`, `index`, `exploration`, and a thread pool for each thing that may hang.

    :param event_log: receives the events of the native route; by default the store of the settings, if any.
    :param tracer_provider: an OpenTelemetry `TracerProvider`; by default one for OTLP if `settings.otel` is set.
    """
    settings = settings or ServerSettings()
    settings.check_auth()
    settings.check_folders()
    app = FastAPI(
        title="mnemorank",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        # FastAPI's own pages load scripts from a CDN; api/docs.py serves them locally.
        docs_url=None,
        redoc_url=None,
        # Behind a proxy, a redirect would name the wrong scheme and host: `/rerank/` is a plain 404.
        redirect_slashes=False,
    )
    state = app.state
    state.learning = None
    state.index = None
    if settings.learning is not None:
        from mnemorank.server.learning import LearningLog, open_learning, with_learning

        state.learning = open_learning(settings)
        settings = with_learning(settings, state.learning)
        event_log = event_log if event_log is not None else LearningLog(state.learning)
    state.settings = settings
    state.exploration = random.Random(settings.explore_seed)
    state.keys = KeyFile(settings.keys) if settings.keys else None
    state.metrics = Metrics(lambda: state.slot.current.scorer.waiting_pairs if state.slot.current else 0)
    load = partial(load_served, settings=settings, metrics=state.metrics)
    state.slot = ModelSlot(load, state.metrics, settings.swap_timeout)
    state.catalog = ModelCatalog(settings)
    tracing = Tracing(open_tracer_provider() if tracer_provider is None and settings.otel else tracer_provider)
    state.engine = Engine(settings, state.slot, tracing)
    state.parser_pool = ThreadPool("request parser", _PARSER_THREADS, settings.max_requests)
    state.store_pool = ThreadPool("event store", _STORE_THREADS, settings.max_requests)
    state.learning_pool = ThreadPool("learning loop", _LEARNING_THREADS, settings.max_requests)
    state.swap_pool = ThreadPool("model loader", 1, settings.max_requests)
    state.index_pool = ThreadPool("index", _INDEX_THREADS, settings.max_requests)
    state.event_log = event_log if event_log is not None else _event_log(settings)

    state.history = MetricsHistory(state.metrics)
    state.comparison = ComparisonModel()
    routes = [name for name in ROUTES if name != "console" or settings.has_console]
    modules = [import_module(f"mnemorank.server.api.{name}") for name in routes]
    for module in modules:
        app.include_router(module.router)
    writers = _error_writers(modules)
    install_error_handlers(app, writers)
    _add_middleware(app, settings, tracing, writers)
    return app


def _add_middleware(app: FastAPI, settings: ServerSettings, tracing: Tracing, writers: dict[str, ErrorWriter]) -> None:
    """Add the middleware, innermost first."""
    keys = app.state.keys
    if keys is None:
        app.add_middleware(OriginGuard, settings=settings, writers=writers)
    app.add_middleware(BodyLimiter, settings=settings, keys=keys, writers=writers)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(settings.cors_origins), allow_methods=["*"], allow_headers=["*"]
        )
    if settings.is_loopback and keys is None:
        # Keep web pages from reaching a local server through their own host name (DNS rebinding).
        hosts = ["localhost", "127.0.0.1", "[::1]", settings.host, *settings.allowed_hosts]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.add_middleware(RequestLogger, metrics=app.state.metrics, tracing=tracing, writers=writers)
    tracing.instrument(app)


def _event_log(settings: ServerSettings) -> EventLog | None:
    return None if settings.store is None else open_store_log(settings.store)


def _error_writers(modules: list[ModuleType]) -> dict[str, ErrorWriter]:
    return {path: write for module in modules for path, write in getattr(module, "ERRORS", {}).items()}
