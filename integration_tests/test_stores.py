"""The results of stores without a hook for rerankers, read from the real objects of their clients."""

from __future__ import annotations

from datetime import UTC, datetime

from letta_client.types.agents.passage_search_response import PassageSearchResponse
from letta_client.types.passage import Passage
from letta_client.types.passage_search_response import PassageSearchResponseItem
from zep_cloud.types.context_edge import ContextEdge

from mnemorank import Memory, Reranker
from shared import CURRENT, OLD, QUERY


def test_zep_edges():
    edges = [
        ContextEdge(uuid="e1", fact=OLD, valid_at="2023-01-01T00:00:00Z", invalid_at="2024-02-01T00:00:00Z"),
        ContextEdge(uuid="e2", fact=CURRENT, valid_at="2024-03-01T00:00:00Z", created_at="2024-03-02T00:00:00Z"),
    ]
    memory = Memory.of(edges[0])
    assert (memory.id, str(memory.occurred_start)[:7], str(memory.occurred_end)[:7]) == ("e1", "2023-01", "2024-02")

    assert Reranker().rerank(QUERY, edges)[0].record is edges[1]


def test_letta_passages():
    passages = [
        Passage(id="p1", text=OLD, created_at=datetime(2023, 1, 1, tzinfo=UTC)),
        Passage(id="p2", text=CURRENT, metadata={"valid_from": "2024-03"}),
    ]
    first, second = map(Memory.of, passages)
    assert (first.id, first.mentioned_at.year) == ("p1", 2023)
    assert (second.id, str(second.occurred_start)) == ("p2", "2024-03")


def test_letta_search_results():
    """Of all passages, and of an agent's."""
    passage = Passage(id="p1", text=OLD, created_at=datetime(2023, 1, 1, tzinfo=UTC))
    for_agent = {"count": 1, "results": [{"id": "p1", "content": OLD, "timestamp": "2023-01-01T10:00:00+02:00"}]}
    found = [
        PassageSearchResponseItem(passage=passage, score=0.7, metadata={"combined_score": 0.7}),
        PassageSearchResponse.model_validate(for_agent).results[0],
    ]
    for memory in map(Memory.of, found):
        assert (memory.id, memory.text, memory.mentioned_at.year) == ("p1", OLD, 2023)
    assert Memory.of(found[0]).first_stage_score == 0.7
