"""The wire format of each dialect: literal JSON in, literal JSON out.

The tiny model's logit is the number of the text's words that the query has too, minus 1; so "ruby works" scores 1 for
itself and σ(1) = 0.731…, and a text without a common word scores −1, σ(−1) = 0.269….
"""

from __future__ import annotations

import json
import re
from math import exp

import pytest

HIGH, LOW = 1 / (1 + exp(-1)), 1 / (1 + exp(1))
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def post(client, path, body, **headers):
    content = body if isinstance(body, (str, bytes)) else json.dumps(body)
    return client.post(path, content=content, headers={"content-type": "application/json", **headers})


def close(value):
    return pytest.approx(value, abs=1e-6)


def test_cohere_v2(client):
    answer = post(
        client,
        "/v2/rerank",
        """{"model":"rerank-v3.5","query":"ruby works","documents":["the cat","ruby works","dog"],"top_n":2,
            "max_tokens_per_doc":4096,"priority":0}""",
    )
    assert answer.status_code == 200
    body = answer.json()
    assert UUID.fullmatch(body.pop("id"))
    assert body == {
        "results": [{"index": 1, "relevance_score": close(HIGH)}, {"index": 0, "relevance_score": close(LOW)}],
        "meta": {"api_version": {"version": "2", "is_experimental": False}, "billed_units": {"search_units": 1}},
    }
    assert list(answer.json()) == ["id", "results", "meta"]


def test_cohere_accepts_objects_and_counts_a_search_unit_per_hundred_documents(client):
    answer = post(client, "/v2/rerank", {"query": "ruby", "documents": [{"text": "ruby", "id": 7}, *["cat"] * 100]})
    assert answer.json()["results"][0]["index"] == 0
    assert answer.json()["meta"]["billed_units"] == {"search_units": 2}


def test_cohere_relevant_spans_locate_the_best_window(client):
    long = "the cat " * 60 + "ruby works at aurora labs"
    body = {"query": "ruby works", "documents": [long, "dog"], "relevant_spans": {"mode": "enabled", "threshold": 0.5}}
    first, second = post(client, "/v2/rerank", body).json()["results"]
    (span,) = first["relevant_spans"]
    assert "ruby works" in long[span["start"] : span["end"]]
    assert span["end"] - span["start"] < len(long) / 2
    assert span["score"] == first["relevance_score"]
    assert "relevant_spans" not in second


def test_cohere_max_tokens_per_doc_truncates(client):
    body = {"query": "ruby", "documents": ["the cat and ruby"], "max_tokens_per_doc": 3}
    assert post(client, "/v2/rerank", body).json()["results"] == [{"index": 0, "relevance_score": close(LOW)}]


def test_cohere_errors(client):
    empty = post(client, "/v2/rerank", {"model": "m", "query": "ruby", "documents": []})
    assert (empty.status_code, empty.json()) == (
        400,
        {"message": "invalid request: list of documents must not be empty"},
    )
    wrong = post(client, "/v2/rerank", {"query": "ruby", "documents": ["a"], "top_n": "3"})
    assert wrong.status_code == 422
    assert wrong.json() == {"message": "invalid request: top_n: Input should be a valid integer"}


def test_jina_v1(client):
    answer = post(
        client,
        "/v1/rerank",
        """{"model":"jina-reranker-v2","query":"ruby works","documents":["the cat",{"text":"ruby works"}],
            "top_n":1,"return_documents":true}""",
    )
    assert answer.status_code == 200
    assert answer.json() == {
        "model": "overlap",
        "usage": {"total_tokens": 8, "prompt_tokens": 8},
        "results": [{"index": 1, "relevance_score": close(HIGH), "document": {"text": "ruby works"}}],
    }


def test_jina_without_documents_in_the_response(client):
    body = {"model": "m", "query": "ruby works", "documents": ["the cat", "ruby works"], "return_documents": False}
    assert post(client, "/v1/rerank", body).json()["results"] == [
        {"index": 1, "relevance_score": close(HIGH)},
        {"index": 0, "relevance_score": close(LOW)},
    ]


def test_jina_errors(client):
    empty = post(client, "/v1/rerank", {"model": "m", "query": "ruby", "documents": []})
    assert (empty.status_code, empty.json()) == (400, {"detail": "documents: is empty"})
    wrong = post(client, "/v1/rerank", {"model": "m", "query": 5, "documents": ["a"]})
    assert (wrong.status_code, wrong.json()) == (422, {"detail": "query: Input should be a valid string"})


def test_voyage_is_recognized_by_top_k(client):
    body = '{"query":"ruby works","documents":["the cat","ruby works"],"model":"rerank-2","top_k":1,"truncation":true}'
    assert post(client, "/v1/rerank", body).json() == {
        "object": "list",
        "data": [{"index": 1, "relevance_score": close(HIGH)}],
        "model": "overlap",
        "usage": {"total_tokens": 8},
    }
    all_of_them = post(client, "/v1/rerank", {"query": "ruby", "documents": ["a", "b"], "top_k": None})
    assert len(all_of_them.json()["data"]) == 2
    wrong = post(client, "/v1/rerank", {"query": "ruby", "documents": ["a"], "top_k": 0})
    assert (wrong.status_code, wrong.json()) == (
        422,
        {"detail": "top_k: Input should be greater than or equal to 1"},
    )


def test_tei(client):
    answer = post(
        client,
        "/rerank",
        """{"query":"ruby works","texts":["the cat","ruby works"],"truncate":false,"truncation_direction":"right",
            "raw_scores":false,"return_text":false}""",
    )
    assert answer.status_code == 200
    assert answer.json() == [{"index": 1, "score": close(HIGH)}, {"index": 0, "score": close(LOW)}]
    headers = answer.headers
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == "37"
    assert headers["x-compute-tokens"] == "8"
    for name in ("x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"):
        assert headers[name].isdecimal()


def test_tei_raw_scores_and_texts(client):
    body = {"query": "ruby works", "texts": ["the cat", "ruby works"], "raw_scores": True, "return_text": True}
    assert post(client, "/rerank", body).json() == [
        {"index": 1, "score": 1.0, "text": "ruby works"},
        {"index": 0, "score": -1.0, "text": "the cat"},
    ]


def test_tei_has_no_cap_of_32(client):
    answer = post(client, "/rerank", {"query": "ruby", "texts": ["cat"] * 999 + ["ruby"]})
    assert len(answer.json()) == 1000
    assert answer.json()[0]["index"] == 999


def test_tei_errors(client):
    empty = post(client, "/rerank", {"query": "ruby", "texts": []})
    assert (empty.status_code, empty.json()) == (
        400,
        {"error": "`texts` cannot be empty", "error_type": "Empty"},
    )
    wrong = post(client, "/rerank", {"query": "ruby", "texts": ["a", 3]})
    assert (wrong.status_code, wrong.json()) == (
        422,
        {"error": "texts.1: expected a string, or an object with a string `text`", "error_type": "Validation"},
    )


def test_vllm_and_infinity_rerank_is_recognized_by_documents(client):
    answer = post(
        client, "/rerank", '{"model":"m","query":"ruby works","documents":["the cat","ruby works"],"top_n":0}'
    )
    body = answer.json()
    assert re.fullmatch(r"rerank-[0-9a-f]{32}", body.pop("id"))
    assert body == {
        "model": "overlap",
        "usage": {"prompt_tokens": 8, "total_tokens": 8},
        "results": [
            {"index": 1, "document": {"text": "ruby works"}, "relevance_score": close(HIGH)},
            {"index": 0, "document": {"text": "the cat"}, "relevance_score": close(LOW)},
        ],
    }
    one = post(client, "/rerank", {"query": "ruby", "documents": ["a", "b"], "top_n": 1, "raw_scores": True})
    assert [result["relevance_score"] for result in one.json()["results"]] == [-1.0]


def test_vllm_rerank_errors(client):
    empty = post(client, "/rerank", {"query": "ruby", "documents": []})
    assert empty.status_code == 400
    assert empty.json() == {
        "error": {"message": "documents: is empty", "type": "BadRequestError", "param": "documents", "code": 400}
    }


@pytest.mark.parametrize("flags", [{"use_activation": False}, {"activation": False}, {"raw_scores": True}])
def test_vllm_rerank_returns_logits_on_request(client, flags):
    texts = ["the cat", "the ruby"]
    reranked = post(client, "/rerank", {"query": "ruby", "documents": texts, **flags}).json()["results"]
    assert {entry["index"]: entry["relevance_score"] for entry in reranked} == {0: -1.0, 1: 0.0}
    plain = post(client, "/rerank", {"query": "ruby", "documents": texts, "use_activation": True}).json()["results"]
    assert [entry["relevance_score"] for entry in plain] == [close(0.5), close(LOW)]


@pytest.mark.parametrize("limit", [0, -1])
def test_vllm_rerank_treats_zero_and_minus_one_as_no_limit(client, limit):
    body = {"query": "ruby works", "documents": ["cat ruby works"], "max_tokens_per_doc": limit, "raw_scores": True}
    whole = post(client, "/rerank", body)
    assert (whole.status_code, whole.json()["results"][0]["relevance_score"]) == (200, 1.0)
    cut = post(client, "/rerank", {**body, "max_tokens_per_doc": 1})
    assert cut.json()["results"][0]["relevance_score"] < 1.0


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
def test_vllm_score(client, path, names):
    one, many = names
    answer = post(client, path, {"model": "m", one: "ruby works", many: ["the cat", "ruby works"]})
    body = answer.json()
    assert re.fullmatch(r"score-[0-9a-f]{32}", body.pop("id"))
    assert isinstance(body.pop("created"), int)
    assert body == {
        "object": "list",
        "model": "overlap",
        "data": [
            {"index": 0, "object": "score", "score": close(LOW)},
            {"index": 1, "object": "score", "score": close(HIGH)},
        ],
        "usage": {"prompt_tokens": 8, "total_tokens": 8, "completion_tokens": 0, "prompt_tokens_details": None},
    }


def test_vllm_score_of_pairs_and_of_single_texts(client):
    pairs = {"text_1": ["ruby", "cat", "ruby"], "text_2": ["the ruby", "dog", {"text": "cat"}], "use_activation": False}
    assert [entry["score"] for entry in post(client, "/score", pairs).json()["data"]] == [0.0, -1.0, -1.0]
    single = post(client, "/score", {"text_1": "ruby", "text_2": "ruby"}).json()["data"]
    assert single == [{"index": 0, "object": "score", "score": close(0.5)}]


def test_vllm_score_errors(client):
    uneven = post(client, "/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]})
    assert uneven.status_code == 400
    assert uneven.json() == {
        "error": {
            "message": "text_1: expected one text or as many as text_2 (3), got 2",
            "type": "BadRequestError",
            "param": "text_1",
            "code": 400,
        }
    }
    assert post(client, "/score", {"text_1": "a"}).json()["error"]["message"].startswith("expected text_1 and text_2")


def test_an_empty_document_is_not_relevant_in_any_dialect(client):
    documents = ["", "the cat", " "]
    assert post(client, "/v2/rerank", {"query": "ruby", "documents": documents}).json()["results"] == [
        {"index": 1, "relevance_score": close(LOW)},
        {"index": 0, "relevance_score": 0.0},
        {"index": 2, "relevance_score": 0.0},
    ]
    raw = post(client, "/rerank", {"query": "ruby", "texts": documents, "raw_scores": True}).json()
    assert [entry["index"] for entry in raw] == [1, 0, 2]


def test_all_dialects_return_the_same_scores(client):
    texts = ["ruby works at aurora labs", "the cat", "ruby"]
    cohere = post(client, "/v2/rerank", {"query": "where does ruby work", "documents": texts}).json()["results"]
    jina = post(client, "/v1/rerank", {"query": "where does ruby work", "documents": texts}).json()["results"]
    tei = post(client, "/rerank", {"query": "where does ruby work", "texts": texts}).json()
    vllm = post(client, "/score", {"text_1": "where does ruby work", "text_2": texts}).json()["data"]
    expected = {entry["index"]: entry["score"] for entry in vllm}
    assert {entry["index"]: entry["relevance_score"] for entry in cohere} == expected
    assert {entry["index"]: entry["relevance_score"] for entry in jina} == expected
    assert {entry["index"]: entry["score"] for entry in tei} == expected


def test_unknown_fields_are_ignored(client):
    body = {"query": "ruby", "documents": ["ruby"], "invented_tomorrow": {"deep": [1]}}
    for path in ("/v2/rerank", "/v1/rerank", "/rerank"):
        assert post(client, path, body).status_code == 200
