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
    from mnemorank.service import RerankerService

__all__ = [
    "ArtifactError",
    "ConflictError",
    "CrossEncoder",
    "Failover",
    "InputError",
    "Memory",
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
    "__version__",
]


def __getattr__(name: str) -> object:
    if name == "CrossEncoder":
        from mnemorank.cross_encoder import CrossEncoder

        return CrossEncoder
    if name == "RerankerService":
        from mnemorank.service import RerankerService

        return RerankerService
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
