"""Clients with nothing but their base URL changed, against a real server."""

from __future__ import annotations

import json

import cohere
import litellm
import pytest
import voyageai

from shared import CAT, CURRENT, OLD, QUERY, TEXTS, dates

MEMORIES = [{"text": text, **dates(text)} for text in TEXTS]
QUESTION = "What is Ruby's cat called?"


# The model, and the path after the address. LiteLLM adds the rest.
LITELLM = [
    ("cohere/mini", "/v2/rerank"),
    ("cohere/mini", "/v1/rerank"),
    ("jina_ai/mini", ""),
    ("hosted_vllm/mini", ""),
    ("infinity/mini", "/infinity"),
    ("voyage/mini", "/v1"),
    ("huggingface/mini", ""),
]


@pytest.mark.parametrize("count", [{}, {"top_n": 2}])
@pytest.mark.parametrize(("model", "path"), LITELLM)
def test_litellm(url, model, path, count):
    response = litellm.rerank(
        model=model, query=QUESTION, documents=list(TEXTS), api_base=url + path, api_key="unused", **count
    )

    assert response.results[0]["index"] == 1
    assert len(response.results) == count.get("top_n", 3)
    document = response.results[0].get("document")
    assert document is None or document["text"] == CAT


@pytest.mark.parametrize(
    ("model", "path"), [("cohere/mini", "/v1/rerank"), ("jina_ai/mini", ""), ("voyage/mini", "/v1")]
)
def test_litellm_with_dates(url, model, path):
    response = litellm.rerank(model=model, query=QUERY, documents=MEMORIES, api_base=url + path, api_key="unused")

    assert [TEXTS[result["index"]] for result in response.results] == [CURRENT, OLD, CAT]


def test_the_cohere_sdk_with_dates(url):
    documents = [json.dumps(memory) for memory in MEMORIES]
    response = cohere.ClientV2(api_key="unused", base_url=url).rerank(model="mini", query=QUERY, documents=documents)
    assert [TEXTS[result.index] for result in response.results] == [CURRENT, OLD, CAT]
    response = cohere.Client(api_key="unused", base_url=url).rerank(model="mini", query=QUERY, documents=MEMORIES)
    assert [TEXTS[result.index] for result in response.results] == [CURRENT, OLD, CAT]


def test_voyage(url):
    client = voyageai.Client(api_key="unused", base_url=f"{url}/v1")
    found = client.rerank(QUESTION, list(TEXTS), model="mini", top_k=1)
    assert [result.document for result in found.results] == [CAT]


def test_a_wrong_base_url_is_explained(url):
    with pytest.raises(cohere.NotFoundError) as caught:
        cohere.ClientV2(api_key="unused", base_url=f"{url}/v2").rerank(model="mini", query=QUERY, documents=["a"])
    assert "/v2/rerank" in caught.value.body["message"]
