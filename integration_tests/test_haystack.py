"""The adapter for Haystack, with the real package."""

from __future__ import annotations

import asyncio
from importlib.metadata import files

import pytest
from haystack import Document, Pipeline
from haystack.components.retrievers import InMemoryBM25Retriever
from haystack.dataclasses import ByteStream
from haystack.document_stores.in_memory import InMemoryDocumentStore

from haystack_integrations.components.rankers.mnemorank import MnemorankRanker
from mnemorank import Memory, Options
from shared import CAT, CURRENT, OLD, QUERY, TEXTS, Recorder, dates

DOCUMENTS = [
    Document(id=f"d{number}", content=text, meta={**dates(text), "topic": "job"}, score=0.5)
    for number, text in enumerate(TEXTS)
]


def test_the_current_job_comes_first_and_everything_travels():
    ranked = MnemorankRanker().run(query=QUERY, documents=DOCUMENTS)["documents"]

    assert [document.content for document in ranked] == [CURRENT, OLD, CAT]
    assert [document.id for document in ranked] == ["d2", "d0", "d1"]
    assert ranked[0].score > ranked[1].score > ranked[2].score
    assert ranked[0].meta["occurred_start"] == "2024-03"
    assert ranked[0].meta["retrieval_score"] == 0.5
    assert ranked[0].meta["relevance"] > 0.5
    assert DOCUMENTS[0].score == 0.5  # copies are returned
    assert "relevance" not in DOCUMENTS[0].meta


def _pipeline(**arguments):
    store = InMemoryDocumentStore()
    store.write_documents(DOCUMENTS)
    pipeline = Pipeline()
    pipeline.add_component("retriever", InMemoryBM25Retriever(store, top_k=100))
    pipeline.add_component("ranker", MnemorankRanker(top_k=1, **arguments))
    pipeline.connect("retriever.documents", "ranker.documents")
    return pipeline


DATA = {"retriever": {"query": QUERY}, "ranker": {"query": QUERY}}


def test_in_a_pipeline():
    found = _pipeline().run(DATA)["ranker"]["documents"]

    assert [document.content for document in found] == [CURRENT]


def test_a_saved_pipeline_is_loaded():
    saved = _pipeline(key="topic", arguments={"options": Options(supersession="drop"), "deadline_ms": 9000}).dumps()
    pipeline = Pipeline.loads(saved)
    ranker = pipeline.get_component("ranker")

    assert (ranker.key, ranker.top_k, ranker.arguments["deadline_ms"]) == ("topic", 1, 9000)
    ranked = ranker.run(query=QUERY, documents=DOCUMENTS, top_k=3)["documents"]
    assert [document.id for document in ranked] == ["d2", "d1"]


def test_async_does_not_block_the_event_loop():
    pipeline = _pipeline()
    reranker = Recorder()
    pipeline.get_component("ranker")._adapter.model = reranker
    found = asyncio.run(pipeline.run_async(DATA))["ranker"]["documents"]

    assert [document.content for document in found] == [CURRENT]
    assert not reranker.was_blocking


def test_empty_inputs_follow_haystack():
    ranker = MnemorankRanker(top_k=1)

    assert ranker.run(query=QUERY, documents=[]) == {"documents": []}
    assert ranker.run(query=" ", documents=DOCUMENTS) == {"documents": DOCUMENTS}
    assert len(ranker.run(query=QUERY, documents=DOCUMENTS, top_k=2)["documents"]) == 2
    with pytest.raises(ValueError, match="top_k"):
        MnemorankRanker(top_k=0)
    with pytest.raises(ValueError, match="top_k"):
        ranker.run(query=QUERY, documents=DOCUMENTS, top_k=0)


def test_duplicates_are_removed_and_documents_without_text_come_last():
    better = Document(id="d1", content=CAT, score=0.9)
    blob = Document(id="blob", blob=ByteStream(b"x"), score=1.0)
    ranked = MnemorankRanker().run(query=QUERY, documents=[blob, *DOCUMENTS, better])["documents"]

    assert [document.id for document in ranked] == ["d2", "d0", "d1", "blob"]
    assert ranked[2].meta["retrieval_score"] == 0.9


def test_warm_up_loads_the_model():
    ranker = MnemorankRanker()
    assert "reranker" not in vars(ranker._adapter)
    ranker.warm_up()
    assert "reranker" in vars(ranker._adapter)


def test_raw_documents_are_read_with_their_dates():
    memory = Memory.of(DOCUMENTS[2])

    assert (memory.text, memory.id, memory.first_stage_score) == (CURRENT, "d2", 0.5)
    assert str(memory.occurred_start) == "2024-03"


def test_the_namespace_is_shared_with_other_packages():
    import haystack_integrations

    assert haystack_integrations.__file__ is None  # a namespace package
    assert files("mnemorank")
