"""The adapter for cognee, with the real package, its LanceDB and its search."""

from __future__ import annotations

import asyncio
import hashlib
import json
from uuid import uuid4

import cognee
import pytest
from cognee.infrastructure.databases.vector import get_vector_engine_async
from cognee.infrastructure.databases.vector.embeddings.EmbeddingEngine import EmbeddingResult
from cognee.infrastructure.databases.vector.embeddings.LiteLLMEmbeddingEngine import LiteLLMEmbeddingEngine
from cognee.modules.chunking.models.DocumentChunk import DocumentChunk
from cognee.modules.data.processing.document_types import TextDocument
from cognee.modules.engine.operations.setup import setup
from cognee.modules.search.methods.get_search_type_retriever_instance import get_search_type_retriever_instance
from cognee.modules.search.types import SearchType

from mnemorank.integrations.cognee import MnemorankChunksRetriever, register
from shared import CAT, CURRENT, OLD, QUERY, TEXTS, Recorder, dates


async def _embed(self, texts):
    """Vectors without meaning, close to each other, so that all chunks are found."""
    vectors = [[1 + byte / 2550 for byte in hashlib.sha256(text.encode()).digest()[:8]] for text in texts]
    return EmbeddingResult(vectors, tokens=1)


@pytest.fixture(autouse=True)
def no_downloads(monkeypatch, tmp_path):
    monkeypatch.setattr(LiteLLMEmbeddingEngine, "get_tokenizer", lambda self: None)
    monkeypatch.setattr(LiteLLMEmbeddingEngine, "embed_text", _embed)
    cognee.config.system_root_directory(str(tmp_path / "system"))
    cognee.config.data_root_directory(str(tmp_path / "data"))


def _chunk(text):
    metadata = json.dumps({**dates(text), "topic": "cat" if text == CAT else "job"})
    document = TextDocument(
        id=uuid4(), name="notes", raw_data_location="", mime_type="text/plain", external_metadata=metadata
    )
    return DocumentChunk(id=uuid4(), text=text, chunk_size=8, chunk_index=0, cut_type="end", is_part_of=document)


async def _fill():
    await setup()
    engine = await get_vector_engine_async()
    await engine.create_vector_index("DocumentChunk", "text")
    await engine.index_data_points("DocumentChunk", "text", [_chunk(text) for text in TEXTS])


def test_the_current_job_comes_first_and_distances_increase():
    async def retrieve():
        await _fill()
        return await MnemorankChunksRetriever(top_k=3).get_retrieved_objects(QUERY)

    chunks = asyncio.run(retrieve())
    assert [chunk.payload["text"] for chunk in chunks] == [CURRENT, OLD, CAT]
    assert chunks[0].score < chunks[1].score < chunks[2].score
    assert json.loads(chunks[0].payload["external_metadata"])["occurred_start"] == "2024-03"


def test_in_cognees_search_after_registration():
    reranker = Recorder()
    register(reranker, key="topic", options={"supersession": "drop"})

    async def search():
        await _fill()
        retriever = await get_search_type_retriever_instance(SearchType.CHUNKS, query_text=QUERY, top_k=1)
        chunks = await retriever.get_retrieved_objects(QUERY)
        return chunks, await cognee.search(QUERY, SearchType.CHUNKS, top_k=5)

    chunks, found = asyncio.run(search())
    assert [chunk.payload["text"] for chunk in chunks] == [CURRENT]
    assert reranker.sizes == [3, 3]
    assert not reranker.was_blocking
    results = found[0]["search_result"] if isinstance(found[0], dict) and "search_result" in found[0] else found
    assert [result["text"] for result in results] == [CURRENT, CAT]  # the job at Zenith was replaced
