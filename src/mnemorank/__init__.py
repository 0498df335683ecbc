"""mnemorank: the reranker for agent memory."""

from mnemorank._version import __version__
from mnemorank.artifact.formats import format_memory
from mnemorank.errors import ArtifactError, InputError, MissingExtraError, MnemorankError, ScorerError
from mnemorank.memory.memory import Memory
from mnemorank.memory.moment import Moment
from mnemorank.model.failover import Failover
from mnemorank.model.model import Model
from mnemorank.options import Options
from mnemorank.ranking.factors import Fusion
from mnemorank.ranking.selection import Selection
from mnemorank.reranker import Reranker
from mnemorank.results import Ranking, Result, Score
from mnemorank.service import RerankerService

__all__ = [
    "ArtifactError",
    "Failover",
    "Fusion",
    "InputError",
    "Memory",
    "MissingExtraError",
    "MnemorankError",
    "Model",
    "Moment",
    "Options",
    "Ranking",
    "Reranker",
    "RerankerService",
    "Result",
    "Score",
    "ScorerError",
    "Selection",
    "__version__",
    "format_memory",
]
