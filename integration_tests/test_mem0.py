"""The adapter for mem0, with the real package and a local Qdrant."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime

import pytest
from mem0 import AsyncMemory, Memory
from mem0.embeddings.base import EmbeddingBase
from mem0.reranker.base import BaseReranker
from mem0.utils.factory import EmbedderFactory, RerankerFactory

from mnemorank.integrations import mem0 as integration
from shared import CAT, CURRENT, OLD, QUERY, STARTED, TEXTS

FILTERS = {"user_id": "ruby"}


class Embedder(EmbeddingBase):
    """Vectors without meaning, close to each other, so that all memories are found."""

    def embed(self, text, memory_action=None):
        digest = hashlib.sha256(text.encode()).digest()
        return [1 + byte / 2550 for byte in digest]

    def embed_batch(self, texts, memory_action=None):
        return [self.embed(text) for text in texts]


@pytest.fixture
def configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "unused")
    monkeypatch.setitem(EmbedderFactory.provider_to_class, "ollama", f"{__name__}.Embedder")
    integration.register()
    return {
        "vector_store": {
            "provider": "qdrant",
            "config": {"path": str(tmp_path / "qdrant"), "embedding_model_dims": 32, "on_disk": True},
        },
        "embedder": {"provider": "ollama", "config": {"embedding_dims": 32}},
        "history_db_path": str(tmp_path / "history.db"),
        "reranker": {"provider": "mnemorank", "config": {"model": "mini"}},
    }


def _fill(memory):
    for text in TEXTS:
        (added,) = memory.add(text, user_id="ruby", infer=False, metadata={"topic": "job"})["results"]
        if text in STARTED:  # as if it had been stored then
            point = memory.vector_store.get(added["id"])
            stored = datetime.fromisoformat(STARTED[text] + "-01").replace(tzinfo=UTC).isoformat()
            payload = {**point.payload, "created_at": stored, "updated_at": stored}
            memory.vector_store.update(added["id"], vector=memory.embedding_model.embed(text), payload=payload)


@pytest.fixture
def memory(configuration):
    memory = Memory.from_config(configuration)
    _fill(memory)
    yield memory
    memory.vector_store.client.close()


def test_the_current_job_comes_first_by_created_at_alone(memory):
    found = memory.search(QUERY, top_k=3, filters=FILTERS, rerank=True)["results"]

    assert found[0]["memory"] == CURRENT
    assert {item["memory"] for item in found} == {CURRENT, OLD, CAT}
    assert found[0]["rerank_score"] > found[1]["rerank_score"] > found[2]["rerank_score"]
    assert found[0]["relevance"] > 0.5
    assert found[0]["created_at"].startswith("2024-03")
    assert {"id", "score", "metadata"} <= found[0].keys()


def test_mem0_cuts_before_it_reranks_and_our_search_does_not(memory):
    """mem0#6448: with top_k=1, what the retriever had first stays first."""
    first = memory.search(QUERY, top_k=1, filters=FILTERS)["results"][0]["memory"]
    assert memory.search(QUERY, top_k=1, filters=FILTERS, rerank=True)["results"][0]["memory"] == first
    assert first != CURRENT

    found = integration.search(memory, QUERY, 1, filters=FILTERS)
    assert [item["memory"] for item in found["results"]] == [CURRENT]


def test_async(configuration):
    sync_memory = Memory.from_config(configuration)
    _fill(sync_memory)
    sync_memory.vector_store.client.close()

    async def search():
        memory = AsyncMemory.from_config(configuration)
        return await integration.asearch(memory, QUERY, 1, filters=FILTERS)

    assert [item["memory"] for item in asyncio.run(search())["results"]] == [CURRENT]


def test_empty_inputs_follow_mem0():
    reranker = integration.MnemorankReranker()

    assert reranker.rerank(QUERY, []) == []
    assert [item["id"] for item in reranker.rerank("", [{"id": 1, "memory": "a"}, {"id": 2, "memory": "b"}])] == [1, 2]


def test_a_key_marks_replaced_memories():
    reranker = RerankerFactory.create("mnemorank", {"key": "topic"})
    assert isinstance(reranker, BaseReranker)
    records = [
        {"memory": OLD, "created_at": "2023-01-01", "metadata": {"topic": "job"}},
        {"memory": CURRENT, "created_at": "2024-03-01", "metadata": {"topic": "job"}},
    ]

    assert [item.get("stale", False) for item in reranker.rerank(QUERY, records)] == [False, True]
    assert "rerank_score" not in records[0]  # copies are returned
