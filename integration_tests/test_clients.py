"""Clients of other rerankers in LangChain and LlamaIndex, with nothing but their base URL changed."""

from __future__ import annotations

from langchain_cohere import CohereRerank
from langchain_core.documents import Document
from langchain_voyageai import VoyageAIRerank
from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

from shared import CAT, TEXTS

QUESTION = "What is Ruby's cat called?"
DOCUMENTS = [Document(page_content=text) for text in TEXTS]
NODES = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in TEXTS]


def test_cohere_in_langchain(url):
    reranker = CohereRerank(cohere_api_key="unused", base_url=url, model="mini", top_n=2)
    assert reranker.compress_documents(DOCUMENTS, QUESTION)[0].page_content == CAT


def test_voyage_in_langchain(url):
    reranker = VoyageAIRerank(voyage_api_key="unused", base_url=f"{url}/v1", model="mini", top_k=2)
    assert reranker.compress_documents(DOCUMENTS, QUESTION)[0].page_content == CAT


def test_tei_in_llamaindex(url):
    reranker = TextEmbeddingInference(base_url=url, top_n=2)
    assert reranker.postprocess_nodes(NODES, query_str=QUESTION)[0].text == CAT


def test_jina_in_llamaindex(url):
    reranker = JinaRerank(base_url=f"{url}/v1", api_key="unused", top_n=2)
    assert reranker.postprocess_nodes(NODES, query_str=QUESTION)[0].text == CAT
