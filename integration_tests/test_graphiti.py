"""The adapter for Graphiti, with the real package and an embedded graph database."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime

import pytest
from graphiti_core import Graphiti
from graphiti_core.driver.driver import GraphProvider
from graphiti_core.driver.kuzu_driver import KuzuDriver
from graphiti_core.edges import EntityEdge
from graphiti_core.embedder import EmbedderClient
from graphiti_core.graph_queries import get_fulltext_indices
from graphiti_core.llm_client import LLMClient
from graphiti_core.nodes import EntityNode
from graphiti_core.search.search_config_recipes import EDGE_HYBRID_SEARCH_CROSS_ENCODER

from mnemorank import Memory
from mnemorank.integrations.graphiti import MnemorankClient
from shared import CAT, CURRENT, OLD, QUERY, TEXTS, Recorder

NOW = datetime(2026, 1, 1, tzinfo=UTC)
VALID = {
    OLD: (datetime(2023, 1, 1, tzinfo=UTC), datetime(2024, 2, 1, tzinfo=UTC)),
    CURRENT: (datetime(2024, 3, 1, tzinfo=UTC), None),
    CAT: (None, None),
}


def _edges(source="a", target="b"):
    return [
        EntityEdge(
            uuid=f"e{number}",
            group_id="g",
            source_node_uuid=source,
            target_node_uuid=target,
            created_at=NOW,
            name="WORKS_AT",
            fact=text,
            valid_at=VALID[text][0],
            invalid_at=VALID[text][1],
        )
        for number, text in enumerate(TEXTS)
    ]


def test_the_dates_of_edges_count():
    edges = _edges()
    ranked = asyncio.run(MnemorankClient().rerank_edges(QUERY, edges))

    assert [edge.fact for edge in ranked] == [CURRENT, CAT, OLD]  # the job at Zenith ended
    assert ranked[0] is edges[2]
    assert len(asyncio.run(MnemorankClient().rerank_edges(QUERY, _edges(), top_k=1))) == 1


def test_equal_facts_stay_apart():
    edges = [edge.model_copy(update={"fact": OLD, "uuid": uuid}) for edge, uuid in zip(_edges(), "xyz", strict=True)]
    ranked = asyncio.run(MnemorankClient().rerank_edges(QUERY, edges))

    assert sorted(edge.uuid for edge in ranked) == ["x", "y", "z"]


def test_edges_are_read_with_their_dates():
    memory = Memory.of(_edges()[0])

    assert (memory.text, memory.id) == (OLD, "e0")
    assert (memory.occurred_start.year, memory.occurred_end.year) == (2023, 2024)


def test_passages():
    reranker = Recorder()
    client = MnemorankClient(reranker)
    ranked = asyncio.run(client.rank("What is Ruby's cat called?", list(TEXTS)))

    assert ranked[0][0] == CAT
    scores = [score for _, score in ranked]
    assert sorted(set(scores), reverse=True) == scores
    assert not reranker.was_blocking
    assert asyncio.run(client.rank(QUERY, [])) == []
    assert [text for text, _ in asyncio.run(client.rank("", list(TEXTS)))] == list(TEXTS)


class Embedder(EmbedderClient):
    """Vectors without meaning, so that all edges are found."""

    async def create(self, input_data):
        digest = hashlib.sha256(str(input_data).encode()).digest()
        return [byte / 255 for byte in digest * 32]


class NoLanguageModel(LLMClient):
    async def _generate_response(self, *_, **__):
        raise AssertionError("searching needs no language model")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_in_a_search_of_a_real_graph():
    async def search():
        driver = KuzuDriver(":memory:")
        for index in get_fulltext_indices(GraphProvider.KUZU):
            await driver.execute_query(index)
        client = MnemorankClient()
        graphiti = Graphiti(
            graph_driver=driver, llm_client=NoLanguageModel(None), embedder=Embedder(), cross_encoder=client
        )
        nodes = [EntityNode(name=name, group_id="g") for name in ("Ruby", "Zenith")]
        for node in nodes:
            await node.generate_name_embedding(Embedder())
            await node.save(driver)
        for edge in _edges(nodes[0].uuid, nodes[1].uuid):
            await edge.generate_embedding(Embedder())
            await edge.save(driver)
        found = await graphiti.search_("What is Ruby's cat called?", EDGE_HYBRID_SEARCH_CROSS_ENCODER, ["g"])
        wide = await graphiti.search(QUERY, group_ids=["g"], num_results=100)
        return found.edges, await client.rerank_edges(QUERY, wide, top_k=1)

    found, best = asyncio.run(search())
    assert found[0].fact == CAT
    assert [edge.fact for edge in best] == [CURRENT]
