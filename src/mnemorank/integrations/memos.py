"""MemOS: a reranker backend, which the plugin below registers as `mnemorank` when MemOS starts."""

from __future__ import annotations

import os
from typing import Any

from memos.memories.textual.item import TextualMemoryItem
from memos.plugins.base import MemOSPlugin
from memos.reranker.base import BaseReranker
from memos.reranker.factory import RerankerFactory

from mnemorank._version import __version__
from mnemorank.integrations.adapter import Adapter
from mnemorank.reranker import Reranker


class MnemorankReranker(BaseReranker):
    """Reranks memory items by their text, dates and scores.

    :param key: the metadata field that says what an item is about: the newest of equal ones replaces the others.
    :param arguments: further arguments of `Reranker.rerank`, such as `options` and `deadline_ms`.
    """

    def __init__(self, model: str | Reranker = "mini", *, key: str | None = None, **arguments: Any) -> None:
        self._adapter = Adapter(model, key=key, **arguments)

    def rerank(
        self,
        query: str,
        graph_results: list[TextualMemoryItem],
        top_k: int,
        search_filter: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> list[tuple[TextualMemoryItem, float]]:
        """Return `top_k` items with scores, best first. If the model fails, the scores are 1/rank."""
        return [(graph_results[i], score) for i, score in self._adapter.rank_scored(query, graph_results, top_k)]


class MnemorankPlugin(MemOSPlugin):
    """Adds the backend `mnemorank`, by configuration or by `MOS_RERANKER_BACKEND=mnemorank`."""

    name = "mnemorank"
    version = __version__
    description = "Reranks memories with mnemorank"

    def on_load(self) -> None:
        create = RerankerFactory.from_config

        def from_config(config: Any) -> BaseReranker | None:
            if config is not None and _is_ours(config.backend):
                return MnemorankReranker(**_arguments(config))
            return create(config)

        RerankerFactory.from_config = staticmethod(from_config)


def _is_ours(backend: str) -> bool:
    # MemOS turns a backend of the environment that it does not know into cosine_local.
    is_set = os.getenv("MOS_RERANKER_BACKEND") == "mnemorank" and backend == "cosine_local"
    return backend == "mnemorank" or is_set


def _arguments(config: Any) -> dict[str, Any]:
    if config.backend == "mnemorank":
        return dict(config.config)
    return {"model": os.getenv("MOS_RERANKER_MODEL", "mini")}
