"""Real clients, with nothing but their base URL changed."""

from __future__ import annotations

import cohere
import httpx
import huggingface_hub
import pytest

TEXTS = ["the cat", "ruby works at aurora labs", "dog"]


@pytest.fixture
def cohere_client(server):
    with httpx.Client() as transport:
        yield cohere.ClientV2(api_key="any", base_url=server.url, httpx_client=transport)


def test_cohere_sdk(cohere_client):
    answer = cohere_client.rerank(model="rerank-v3.5", query="where does ruby work", documents=TEXTS, top_n=2)
    assert [result.index for result in answer.results] == [1, 0]
    assert 0.4 < answer.results[0].relevance_score < 1
    assert answer.meta.api_version.version == "2"
    assert answer.meta.billed_units.search_units == 1


def test_cohere_sdk_reads_our_errors(cohere_client):
    with pytest.raises(cohere.BadRequestError) as caught:
        cohere_client.rerank(model="m", query="ruby", documents=[])
    assert caught.value.body == {"message": "invalid request: list of documents must not be empty"}
    with pytest.raises(cohere.UnprocessableEntityError):
        cohere_client.rerank(model="m", query=" ", documents=["a"])


def test_cohere_v1_sdk_reads_the_jina_format(server):
    with httpx.Client() as transport:
        client = cohere.Client(api_key="any", base_url=server.url, httpx_client=transport)
        answer = client.rerank(model="m", query="ruby", documents=TEXTS, top_n=1, return_documents=True)
    assert answer.results[0].index == 1
    assert answer.results[0].document.text == TEXTS[1]


def test_huggingface_hub_session_speaks_tei(server):
    """The InferenceClient has no rerank task; its users call TEI's /rerank with its session."""
    answer = huggingface_hub.get_session().post(f"{server.url}/rerank", json={"query": "ruby", "texts": TEXTS})
    assert [set(entry) for entry in answer.json()] == [{"index", "score"}] * 3
    assert answer.json()[0]["index"] == 1
    huggingface_hub.close_session()


@pytest.mark.parametrize("dialect", ["tei", "cohere", "jina"])
def test_a_remote_model_can_be_another_mnemorank_server(server, start, dialect, monkeypatch):
    """In each dialect that both sides support."""
    monkeypatch.setenv("COHERE_API_KEY", "any")
    monkeypatch.setenv("JINA_API_KEY", "any")
    front = start(model=f"{dialect}:{server.url}")
    body = {"query": "where does ruby work", "texts": TEXTS}
    behind = server.client.post("/rerank", json=body).json()
    assert front.client.post("/rerank", json=body).json() == [
        {"index": entry["index"], "score": pytest.approx(entry["score"], abs=1e-6)} for entry in behind
    ]
