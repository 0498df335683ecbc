"""The adapters for LangChain, with the real package."""

from __future__ import annotations

import asyncio
import copy

import pytest
from langchain_classic.retrievers import ContextualCompressionRetriever
from langchain_classic.retrievers.document_compressors import CrossEncoderReranker, DocumentCompressorPipeline
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore

from mnemorank import Options
from mnemorank.integrations.langchain import MnemorankCrossEncoder, MnemorankRerank
from shared import CAT, CURRENT, OLD, QUERY, TEXTS, Recorder, dates

DOCUMENTS = [Document(id=f"d{i}", page_content=text, metadata=dates(text)) for i, text in enumerate(TEXTS)]


def test_the_current_job_comes_first_and_everything_travels():
    ranked = MnemorankRerank(top_n=None).compress_documents(DOCUMENTS, QUERY)

    assert [document.page_content for document in ranked] == [CURRENT, OLD, CAT]
    assert [document.id for document in ranked] == ["d2", "d0", "d1"]
    assert ranked[0].metadata["occurred_start"] == "2024-03"
    assert ranked[0].metadata["relevance"] > 0.5
    scores = [document.metadata["relevance_score"] for document in ranked]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) == 3
    assert DOCUMENTS[0].metadata == dates(OLD)  # copies are returned


def test_a_key_that_the_caller_names_marks_replaced_documents():
    documents = [d.model_copy(update={"metadata": {**d.metadata, "topic": "job"}}) for d in DOCUMENTS]
    ranked = MnemorankRerank(key="topic").compress_documents(documents, QUERY)

    assert {d.page_content: d.metadata.get("stale", False) for d in ranked} == {CURRENT: False, OLD: True, CAT: False}


def test_in_a_retriever_with_a_wide_pool():
    store = InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
    store.add_documents(DOCUMENTS)
    retriever = ContextualCompressionRetriever(
        base_compressor=MnemorankRerank(top_n=1), base_retriever=store.as_retriever(search_kwargs={"k": 100})
    )

    assert [document.page_content for document in retriever.invoke(QUERY)] == [CURRENT]
    assert [document.page_content for document in asyncio.run(retriever.ainvoke(QUERY))] == [CURRENT]


def test_async_does_not_block_the_event_loop():
    reranker = Recorder()
    asyncio.run(MnemorankRerank(model=reranker).acompress_documents(DOCUMENTS, QUERY))

    assert reranker.sizes == [3]
    assert not reranker.was_blocking


@pytest.mark.parametrize("query", ["", "  "])
def test_an_empty_query_keeps_the_order(query):
    assert list(MnemorankRerank(top_n=2).compress_documents(DOCUMENTS, query)) == DOCUMENTS[:2]


def test_an_empty_pool():
    assert list(MnemorankRerank().compress_documents([], QUERY)) == []


def test_options_and_copies():
    compressor = MnemorankRerank(arguments={"options": Options(floor=0.5)})
    for each in (compressor, copy.deepcopy(compressor), compressor.model_copy()):
        assert [document.page_content for document in each.compress_documents(DOCUMENTS, QUERY)] == [CURRENT]


def test_in_a_pipeline_the_score_of_the_first_becomes_the_first_stage_of_the_second():
    pipeline = DocumentCompressorPipeline(transformers=[MnemorankRerank(top_n=2), MnemorankRerank(top_n=1)])

    assert [document.page_content for document in pipeline.compress_documents(DOCUMENTS, QUERY)] == [CURRENT]


def test_the_cross_encoder():
    encoder = MnemorankCrossEncoder()
    scores = encoder.score([("Who is Miso?", CAT), ("Who is Miso?", OLD), ("", OLD)])

    assert scores[0] > scores[1] > scores[2] == 0
    ranked = CrossEncoderReranker(model=encoder, top_n=1).compress_documents(DOCUMENTS, "What is Ruby's cat called?")
    assert [document.page_content for document in ranked] == [CAT]
