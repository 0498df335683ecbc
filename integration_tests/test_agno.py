"""The adapter for agno, with the real package."""

from __future__ import annotations

import asyncio

from agno.knowledge.document import Document
from agno.knowledge.reranker.base import Reranker as AgnoReranker

from mnemorank import Memory, Options
from mnemorank.integrations.agno import MnemorankReranker
from shared import CAT, CURRENT, OLD, QUERY, TEXTS, Recorder, dates

DOCUMENTS = [
    Document(id=f"d{number}", name="Ruby", content=text, meta_data={**dates(text), "topic": "job"})
    for number, text in enumerate(TEXTS)
]


def test_the_current_job_comes_first_and_everything_travels():
    reranker = MnemorankReranker()
    assert isinstance(reranker, AgnoReranker)
    ranked = reranker.rerank(QUERY, DOCUMENTS)

    assert [document.content for document in ranked] == [CURRENT, OLD, CAT]
    assert [(document.id, document.name) for document in ranked] == [(f"d{n}", "Ruby") for n in (2, 0, 1)]
    assert ranked[0].reranking_score > ranked[1].reranking_score > ranked[2].reranking_score
    assert ranked[0].meta_data["occurred_start"] == "2024-03"
    assert ranked[0].meta_data["relevance"] > 0.5
    assert DOCUMENTS[0].reranking_score is None  # copies are returned


def test_async_does_not_block_the_event_loop():
    recorder = Recorder()
    ranked = asyncio.run(MnemorankReranker(model=recorder).arerank(QUERY, DOCUMENTS, 1))

    assert [document.content for document in ranked] == [CURRENT]
    assert not recorder.was_blocking


def test_the_wide_pool_goes_in():
    reranker = MnemorankReranker(top_n=2)

    assert reranker.search_limit(5) == 100
    assert reranker.accepts_limit()
    assert len(reranker.rerank(QUERY, DOCUMENTS)) == 2
    assert len(reranker.rerank(QUERY, DOCUMENTS, limit=1)) == 1


def test_empty_inputs():
    reranker = MnemorankReranker()

    assert reranker.rerank(QUERY, []) == []
    assert reranker.rerank("", DOCUMENTS) == DOCUMENTS


def test_a_key_and_options():
    reranker = MnemorankReranker(key="topic", arguments={"options": Options(supersession="drop")})

    assert [document.id for document in reranker.rerank(QUERY, DOCUMENTS)] == ["d2", "d1"]


def test_raw_documents_are_read_with_their_dates():
    assert str(Memory.of(DOCUMENTS[2]).occurred_start) == "2024-03"
