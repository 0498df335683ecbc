"""The adapter for LlamaIndex, with the real package."""

from __future__ import annotations

import asyncio

import pytest
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.bridge.pydantic import Field
from llama_index.core.instrumentation import get_dispatcher
from llama_index.core.instrumentation.event_handlers import BaseEventHandler
from llama_index.core.schema import Document, ImageNode, MetadataMode, NodeWithScore, QueryBundle, TextNode

from mnemorank import Memory, Options
from mnemorank.integrations.llamaindex import MnemorankPostprocessor
from shared import CAT, CURRENT, OLD, QUERY, TEXTS, Recorder, dates


def _nodes(kind=TextNode):
    return [
        NodeWithScore(node=kind(id_=f"n{number}", text=text, metadata={**dates(text), "topic": "job"}), score=0.5)
        for number, text in enumerate(TEXTS)
    ]


@pytest.mark.parametrize("kind", [TextNode, Document])
def test_the_current_job_comes_first_and_everything_travels(kind):
    nodes = _nodes(kind)
    ranked = MnemorankPostprocessor().postprocess_nodes(nodes, query_str=QUERY)

    assert [node.get_content() for node in ranked] == [CURRENT, OLD, CAT]
    assert [node.node_id for node in ranked] == ["n2", "n0", "n1"]
    assert ranked[0].score > ranked[1].score > ranked[2].score
    assert ranked[0].metadata["occurred_start"] == "2024-03"
    assert ranked[0].metadata["retrieval_score"] == 0.5
    assert ranked[0].metadata["relevance"] > 0.5
    assert "relevance" not in ranked[0].get_content(MetadataMode.LLM)
    assert nodes[0].score == 0.5  # copies are returned
    assert "relevance" not in nodes[0].metadata


def test_in_a_query_engine_with_a_wide_pool():
    index = VectorStoreIndex([node.node for node in _nodes()], embed_model=MockEmbedding(8))
    reranker = Recorder()
    postprocessor = MnemorankPostprocessor(model=reranker, top_n=1)
    retriever = index.as_retriever(similarity_top_k=100)
    found = postprocessor.postprocess_nodes(retriever.retrieve(QUERY), query_str=QUERY)

    assert [node.text for node in found] == [CURRENT]
    assert reranker.sizes == [3]


def test_async_does_not_block_the_event_loop():
    reranker = Recorder()
    postprocessor = MnemorankPostprocessor(model=reranker, top_n=1)
    ranked = asyncio.run(postprocessor.apostprocess_nodes(_nodes(), QueryBundle(QUERY)))

    assert [node.text for node in ranked] == [CURRENT]
    assert not reranker.was_blocking


def test_events_are_emitted():
    class Handler(BaseEventHandler):
        names: list[str] = Field(default_factory=list)

        def handle(self, event, **_):
            self.names.append(event.class_name())

    handler = Handler()
    root = get_dispatcher()
    root.add_event_handler(handler)
    try:
        MnemorankPostprocessor().postprocess_nodes(_nodes(), query_str=QUERY)
    finally:
        root.event_handlers.remove(handler)
    assert handler.names == ["ReRankStartEvent", "ReRankEndEvent"]


def test_empty_inputs_follow_llamaindex():
    postprocessor = MnemorankPostprocessor(top_n=2)
    with pytest.raises(ValueError, match="query bundle"):
        postprocessor.postprocess_nodes(_nodes())
    assert postprocessor.postprocess_nodes([], query_str=QUERY) == []
    assert [node.node_id for node in postprocessor.postprocess_nodes(_nodes(), query_str="")] == ["n0", "n1"]


def test_a_key_that_the_caller_names_marks_replaced_nodes():
    ranked = MnemorankPostprocessor(key="topic").postprocess_nodes(_nodes(), query_str=QUERY)

    assert [node.node_id for node in ranked if node.metadata.get("stale")] == ["n0"]


def test_a_node_without_text_comes_last():
    nodes = [NodeWithScore(node=ImageNode(id_="image"), score=0.9), *_nodes()]

    assert MnemorankPostprocessor().postprocess_nodes(nodes, query_str=QUERY)[-1].node_id == "image"


def test_configuration_survives_json():
    postprocessor = MnemorankPostprocessor(top_n=7, key="topic", arguments={"options": Options(floor=0.5)})
    copy = MnemorankPostprocessor.from_json(postprocessor.to_json())

    assert (copy.top_n, copy.key, copy.model) == (7, "topic", "mini")
    assert [node.text for node in copy.postprocess_nodes(_nodes(), query_str=QUERY)] == [CURRENT]


@pytest.mark.parametrize("kind", [TextNode, Document])
def test_raw_nodes_are_read_with_their_dates(kind):
    memory = Memory.of(_nodes(kind)[2])

    assert (memory.text, memory.id, memory.first_stage_score) == (CURRENT, "n2", 0.5)
    assert str(memory.occurred_start) == "2024-03"
