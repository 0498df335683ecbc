"""The adapter for LangGraph and LangMem, with the real packages."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from langgraph.store.base import SearchOp
from langgraph.store.memory import InMemoryStore
from langmem import create_manage_memory_tool, create_search_memory_tool

from mnemorank import Options
from mnemorank.integrations.langgraph import RerankedStore
from shared import CAT, CURRENT, OLD, QUERY, STARTED, TEXTS, Recorder, dates

NAMESPACE = ("memories", "ruby")


def _store():
    store = InMemoryStore(index={"dims": 8, "embed": DeterministicFakeEmbedding(size=8)})
    for number, text in enumerate(TEXTS):
        store.put(NAMESPACE, f"k{number}", {"text": text, **dates(text), "topic": "cat" if text == CAT else "job"})
    return store


def test_the_current_job_comes_first_and_everything_travels():
    items = RerankedStore(_store()).search(NAMESPACE, query=QUERY)

    assert [item.value["text"] for item in items] == [CURRENT, OLD, CAT]
    assert [(item.namespace, item.key) for item in items] == [(NAMESPACE, f"k{n}") for n in (2, 0, 1)]
    assert items[0].score > items[1].score > items[2].score
    assert items[0].created_at.tzinfo is not None


@pytest.mark.parametrize("is_async", [False, True])
def test_the_wide_pool_goes_in_and_pages_come_out(is_async):
    reranker = Recorder()
    store = RerankedStore(_store(), reranker)

    def page(offset):
        if is_async:
            return asyncio.run(store.asearch(NAMESPACE, query=QUERY, limit=1, offset=offset))
        return store.search(NAMESPACE, query=QUERY, limit=1, offset=offset)

    assert [page(offset)[0].value["text"] for offset in range(3)] == [CURRENT, OLD, CAT]
    assert page(3) == []
    assert reranker.sizes == [3, 3, 3, 3]
    assert reranker.was_blocking is not is_async


def test_an_item_counts_as_true_since_its_last_update():
    store = InMemoryStore()
    store.put(NAMESPACE, "new", {"content": CURRENT})
    store.put(NAMESPACE, "old", {"content": OLD})
    for key, year in (("new", 2024), ("old", 2023)):
        store._data[NAMESPACE][key].updated_at = datetime(year, 3, 1, tzinfo=UTC)
        store._data[NAMESPACE][key].created_at = datetime(2026 - year, 1, 1, tzinfo=UTC)

    items = RerankedStore(store).search(NAMESPACE, query=QUERY)
    assert [item.key for item in items] == ["new", "old"]


def test_a_key_of_the_values_tells_what_is_replaced():
    drop = Options(supersession="drop")
    items = RerankedStore(_store(), key="topic", options=drop).search(NAMESPACE, query=QUERY)
    assert [item.value["text"] for item in items] == [CURRENT, CAT]
    assert len(RerankedStore(_store(), options=drop).search(NAMESPACE, query=QUERY)) == 3


def test_values_without_a_text_are_read_as_json():
    store = InMemoryStore()
    store.put(NAMESPACE, "a", {"food": "hazelnuts", "feeling": "allergic"})
    store.put(NAMESPACE, "b", {"pet": "a cat called Miso"})

    items = RerankedStore(store).search(NAMESPACE, query="Is Ruby allergic to hazelnuts?", limit=1)
    assert [item.key for item in items] == ["a"]
    items = RerankedStore(store, field="pet").search(NAMESPACE, query="What is the cat called?", limit=1)
    assert [item.key for item in items] == ["b"]


def test_other_operations_reach_the_store():
    store = RerankedStore(_store())

    assert store.get(NAMESPACE, "k1").value["text"] == CAT
    assert store.list_namespaces() == [NAMESPACE]
    assert len(store.search(NAMESPACE, limit=2)) == 2  # no query: the store's own order
    store.delete(NAMESPACE, "k1")
    assert store.get(NAMESPACE, "k1") is None
    assert store.search(("nothing",), query=QUERY) == []


def test_only_the_items_returned_live_longer():
    class Store(InMemoryStore):
        supports_ttl = True

        def __init__(self):
            super().__init__()
            self.ops = []

        def batch(self, ops):
            self.ops += (ops := list(ops))
            return super().batch(ops)

    inner = Store()
    for number, text in enumerate(TEXTS):
        inner.put(NAMESPACE, f"k{number}", {"text": text, **dates(text)})
    inner.ops.clear()
    RerankedStore(inner).search(NAMESPACE, query=QUERY, limit=1)

    search, read = inner.ops
    assert isinstance(search, SearchOp)
    assert (search.limit, search.refresh_ttl, read.key, read.refresh_ttl) == (100, False, "k2", True)


def test_as_the_store_of_langmems_tools():
    store = RerankedStore(InMemoryStore())
    manage = create_manage_memory_tool(NAMESPACE, store=store)
    for text in sorted(STARTED, key=STARTED.get):
        manage.invoke({"content": text, "action": "create"})
        time.sleep(0.01)
    search = create_search_memory_tool(NAMESPACE, store=store, response_format="content_and_artifact")
    message = search.invoke(
        {"args": {"query": "Where is Aurora?", "limit": 1}, "id": "1", "name": "s", "type": "tool_call"}
    )

    assert [item.value["content"] for item in message.artifact] == [CURRENT]
