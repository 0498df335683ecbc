"""The adapter for MemOS, with the real package and its plugin manager."""

from __future__ import annotations

import pytest
from memos.api.handlers.config_builders import build_reranker_config
from memos.configs.reranker import RerankerConfigFactory
from memos.memories.textual.item import SearchedTreeNodeTextualMemoryMetadata, TextualMemoryItem
from memos.plugins.manager import PluginManager
from memos.reranker.cosine_local import CosineLocalReranker
from memos.reranker.factory import RerankerFactory

from mnemorank import Memory
from mnemorank.integrations.memos import MnemorankReranker
from shared import CAT, CURRENT, OLD, QUERY, STARTED, TEXTS


def _items():
    return [
        TextualMemoryItem(
            memory=text,
            metadata=SearchedTreeNodeTextualMemoryMetadata(
                memory_type="LongTermMemory", key="Ruby", relativity=0.5, created_at=STARTED.get(text)
            ),
        )
        for text in TEXTS
    ]


def test_the_current_job_comes_first_by_created_at_alone():
    items = _items()
    ranked = MnemorankReranker().rerank(QUERY, items, 3)

    assert [item.memory for item, _ in ranked] == [CURRENT, OLD, CAT]
    assert ranked[0][0] is items[2]
    scores = [score for _, score in ranked]
    assert sorted(set(scores), reverse=True) == scores


def test_items_are_read_with_their_dates_and_scores():
    memory = Memory.of(_items()[0])

    assert (str(memory.mentioned_at), memory.first_stage_score, memory.type) == ("2023-01", 0.5, None)
    assert "key" not in memory.metadata  # a title in MemOS


def test_top_k_and_empty_inputs():
    reranker = MnemorankReranker()

    assert len(reranker.rerank(QUERY, _items(), 1, search_filter={"user_id": "ruby"}, search_priority=None)) == 1
    assert reranker.rerank(QUERY, [], 5) == []
    assert [item.memory for item, _ in reranker.rerank("", _items(), 2)] == [OLD, CAT]


@pytest.fixture
def plugins(monkeypatch):
    monkeypatch.setattr(RerankerFactory, "from_config", RerankerFactory.from_config)
    manager = PluginManager()
    manager.discover()
    return manager


def test_the_entry_point_registers_the_backend(plugins):
    assert "mnemorank" in plugins.plugins
    reranker = RerankerFactory.from_config(
        RerankerConfigFactory(backend="mnemorank", config={"model": "mini", "options": {"floor": 0.5}})
    )

    assert isinstance(reranker, MnemorankReranker)
    assert [item.memory for item, _ in reranker.rerank(QUERY, _items(), 3)] == [CURRENT]
    other = RerankerFactory.from_config(RerankerConfigFactory(backend="cosine_local"))
    assert isinstance(other, CosineLocalReranker)


def test_by_environment_variable(plugins, monkeypatch):
    monkeypatch.setenv("MOS_RERANKER_BACKEND", "mnemorank")

    assert isinstance(RerankerFactory.from_config(build_reranker_config()), MnemorankReranker)
