"""Check third-party clients against a running server.

Their requirements conflict with ours, so they are installed into a separate environment.

    python -m venv /tmp/clients
    /tmp/clients/bin/pip install langchain-cohere llama-index-postprocessor-tei-rerank \
        llama-index-postprocessor-jinaai-rerank voyageai
    mnemorank serve --port 8000 &
    /tmp/clients/bin/python benchmarks/client_check.py http://127.0.0.1:8000
"""

from __future__ import annotations

import sys

QUERY = "Where does Ruby work?"
TEXTS = ["The cat sleeps.", "Ruby joined Aurora Labs in March 2024.", "Dogs bark."]
BEST = TEXTS[1]


def llama_index_tei(url: str) -> str:
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

    nodes = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in TEXTS]
    reranker = TextEmbeddingInference(base_url=url, top_n=2)
    return str(reranker.postprocess_nodes(nodes, query_bundle=QueryBundle(QUERY))[0].text)


def llama_index_jina(url: str) -> str:
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
    from llama_index.postprocessor.jinaai_rerank import JinaRerank

    nodes = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in TEXTS]
    reranker = JinaRerank(base_url=f"{url}/v1", api_key="any", top_n=2)
    return str(reranker.postprocess_nodes(nodes, query_bundle=QueryBundle(QUERY))[0].text)


def langchain_cohere(url: str) -> str:
    from langchain_cohere import CohereRerank
    from langchain_core.documents import Document

    reranker = CohereRerank(cohere_api_key="any", base_url=url, model="mini", top_n=2)
    documents = reranker.compress_documents([Document(page_content=text) for text in TEXTS], QUERY)
    return str(documents[0].page_content)


def voyage(url: str) -> str:
    import voyageai

    client = voyageai.Client(api_key="any", base_url=f"{url}/v1")
    assert len(client.rerank(QUERY, TEXTS, model="mini").results) == len(TEXTS)
    return str(client.rerank(QUERY, TEXTS, model="mini", top_k=2).results[0].document)


def main() -> None:
    url = sys.argv[1].rstrip("/")
    for check in (llama_index_tei, llama_index_jina, langchain_cohere, voyage):
        best = check(url)
        print(f"{check.__name__:20} {'ok' if best == BEST else 'WRONG: ' + best}")


if __name__ == "__main__":
    main()
