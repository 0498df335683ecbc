"""mnemorank: the reranker for agent memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mnemorank._version import __version__
from mnemorank.errors import (
    ArtifactError,
    ConflictError,
    InputError,
    MissingExtraError,
    MnemorankError,
    NotFoundError,
    ProbeWarning,
    QueryTooLongError,
    ScorerError,
    StorageError,
)
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.model.failover import Failover
from mnemorank.model.model import Model
from mnemorank.model.prepare import Prepared
from mnemorank.options import Options
from mnemorank.reranker import Reranker
from mnemorank.results import Ranking, Result, Score

if TYPE_CHECKING:
    from mnemorank.cross_encoder import CrossEncoder
    from mnemorank.index.index import MemoryIndex
    from mnemorank.service import RerankerService

__all__ = [
    "ArtifactError",
    "ConflictError",
    "CrossEncoder",
    "Failover",
    "InputError",
    "Memory",
    "MemoryIndex",
    "MissingExtraError",
    "MnemorankError",
    "Model",
    "Moment",
    "NotFoundError",
    "Options",
    "Prepared",
    "ProbeWarning",
    "QueryTooLongError",
    "Ranking",
    "Reranker",
    "RerankerService",
    "Result",
    "Score",
    "ScorerError",
    "StorageError",
    "__version__",
]


# Imported when they are used, with what they need.
_LAZY = {
    "CrossEncoder": "mnemorank.cross_encoder",
    "MemoryIndex": "mnemorank.index.index",
    "RerankerService": "mnemorank.service",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
