"""mnemorank: the reranker for agent memory."""

from mnemorank._version import __version__
from mnemorank.errors import ArtefactError, InputError, MissingExtraError, MnemorankError, ScorerError
from mnemorank.formats import format_memory
from mnemorank.memory import Memory
from mnemorank.model import Model
from mnemorank.moment import Moment
from mnemorank.options import Options
from mnemorank.ranking.fuse import Fusion
from mnemorank.ranking.select import Selection
from mnemorank.reranker import Reranker
from mnemorank.results import Ranking, Result, Score
from mnemorank.scorers.failover import Failover
from mnemorank.service import RerankerService

__all__ = [
    "ArtefactError",
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
