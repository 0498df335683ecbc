"""Health, readiness, info, metrics, logs without texts, request ids, spans, OpenAPI."""

from __future__ import annotations

import json
import logging
import re
import time

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from mnemorank.server.observability import JsonFormatter

BODY = {"query": "where does secretquery work", "texts": ["secrettext", "ruby works"]}


def sample(text, name):
    return next(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(name))


def test_health_ready_and_info(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json()["status"] == "ready"
    info = client.get("/info").json()
    assert (info["model_id"], info["max_input_length"], info["max_client_batch_size"]) == ("overlap", 64, 10_000)
    assert info["model_type"] == {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}}


def test_not_ready_without_a_model(start):
    running = start()
    running.app.state.slot.close()
    for path in ("/ready", "/info", "/v1/models"):
        answer = running.client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_model")
    assert running.client.get("/health").status_code == 200
    tei = running.client.post("/rerank", json=BODY)
    assert (tei.status_code, tei.json()["error_type"]) == (503, "Unhealthy")


def test_metrics_count_requests_batches_padding_and_the_model(start):
    running = start(threads=1)
    for _ in range(3):
        running.client.post("/rerank", json={"query": "ruby", "texts": ["ruby", "the cat and the dog"]})
    running.client.post("/rerank", json={"query": "ruby", "texts": []})
    text = running.client.get("/metrics").text
    assert sample(text, 'mnemorank_requests_total{route="/rerank",status="200"}') == 3
    assert sample(text, 'mnemorank_requests_total{route="/rerank",status="400"}') == 1
    assert sample(text, 'mnemorank_request_seconds_count{route="/rerank"}') == 4
    assert sample(text, "mnemorank_pairs_total") == 6
    assert sample(text, "mnemorank_batch_tokens_count") == 3
    # 1 + 1 and 1 + 5 tokens with 3 special ones each: 14 of 18
    assert sample(text, "mnemorank_padding_share") == pytest.approx(1 - 14 / 18)
    assert sample(text, "mnemorank_queue_pairs") == 0
    assert 'mnemorank_model_info{fingerprint="' in text
    assert sample(text, 'te_request_count{method="single"}') == 4
    assert sample(text, 'te_request_success{method="single"}') == 3
    assert sample(text, 'te_request_failure{err="empty"}') == 1
    assert sample(text, "te_queue_size") == 0
    assert sample(text, "te_batch_next_size_count") == 3


def test_unknown_paths_do_not_become_labels(client):
    client.get("/invented/by/the/caller")
    text = client.get("/metrics").text
    assert "invented" not in text
    assert 'mnemorank_requests_total{route="unknown",status="404"}' in text


def test_valid_request_ids_are_kept_and_others_replaced(client):
    assert client.get("/health", headers={"x-request-id": "abc-123"}).headers["x-request-id"] == "abc-123"
    for bad in ("a b", "x" * 200, "<script>"):
        made = client.get("/health", headers={"x-request-id": bad}).headers["x-request-id"]
        assert len(made) == 32
    assert client.post("/rerank", content=b"{", headers={"x-request-id": "e1"}).headers["x-request-id"] == "e1"


def line_of(caplog, request_id):
    end = time.monotonic() + 5
    while time.monotonic() < end:
        for record in caplog.records:
            if getattr(record, "fields", {}).get("request_id") == request_id:
                return json.loads(JsonFormatter().format(record))
        time.sleep(0.01)
    raise AssertionError("no log line")


def test_the_log_has_one_line_per_request_without_texts(client, caplog):
    caplog.set_level(logging.DEBUG)
    client.post("/rerank", json=BODY, headers={"x-request-id": "logged"})
    line = line_of(caplog, "logged")
    assert (line["method"], line["route"], line["status"], line["caller"]) == ("POST", "/rerank", 200, "anonymous")
    assert line["pairs"] == 2
    assert line["model"].startswith("overlap@0+")
    assert line["ms"] >= line["inference_ms"] >= 0
    client.post("/rerank", json={"query": "secretquery", "texts": ["secrettext"], "raw_scores": 7})
    client.post("/v1/memories/rerank", json={"query": "secretquery", "memories": [{"text": "secrettext", "now": "x"}]})
    everything = "\n".join(JsonFormatter().format(record) for record in caplog.records if record.name != "httpx")
    assert "secret" not in everything


def test_queries_are_logged_on_request(start, caplog):
    caplog.set_level(logging.INFO)
    running = start(log_texts=True)
    running.client.post("/rerank", json=BODY, headers={"x-request-id": "with-text"})
    assert line_of(caplog, "with-text")["query"] == BODY["query"]


def test_an_internal_error_is_500_and_logged_with_the_request_id(start, caplog):
    running = start()
    running.app.state.engine.run = None
    answer = running.client.post("/v2/rerank", json={"query": "a", "documents": ["a"]}, headers={"x-request-id": "e5"})
    assert answer.status_code == 500
    assert set(answer.json()) == {"message"}
    assert "NoneType" not in answer.text
    assert answer.headers["x-request-id"] == "e5"
    assert "NoneType" in line_of(caplog, "e5").get("exception", "")


def test_a_timeout_inside_a_route_is_not_blamed_on_the_body(start):
    async def run(*_: object, **__: object) -> None:
        raise TimeoutError

    running = start()
    running.app.state.engine.run = run
    answer = running.client.post("/v1/memories/rerank", json={"query": "a", "memories": ["a"]})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")


def test_spans_have_the_route_and_no_texts(start):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    running = start(tracer_provider=provider, log_texts=True)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    running.client.post("/rerank", json=BODY, headers={"traceparent": parent})
    end = time.monotonic() + 5
    while len(exporter.get_finished_spans()) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    inner, outer = exporter.get_finished_spans()
    assert (inner.name, outer.name) == ("rank", "POST /rerank")
    assert inner.parent.span_id == outer.context.span_id
    assert f"{outer.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
    assert outer.attributes["http.status_code"] == 200
    assert outer.attributes["http.route"] == "/rerank"
    assert outer.attributes["mnemorank.pairs"] == 2
    assert "secret" not in str(dict(outer.attributes)) + str(dict(inner.attributes))


def test_openapi_has_every_route_with_an_example(client):
    schema = client.get("/openapi.json").json()
    posts = {path for path, methods in schema["paths"].items() if "post" in methods}
    assert {"/v2/rerank", "/v1/rerank", "/rerank", "/score", "/v1/score", "/v1/memories/rerank"} <= posts
    for name in ("CohereRequest", "JinaRequest", "VoyageRequest", "TeiRequest", "VllmRerankRequest", "ScoreRequest"):
        assert "example" in schema["components"]["schemas"][name], name


def test_the_docs_page_loads_nothing_from_other_hosts(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "//" not in page.text
    assert "default-src 'self'" in page.headers["content-security-policy"], "its scripts cannot either"
    named = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(named) == 3
    for name in named:
        answer = client.get(f"/{name}")
        assert answer.status_code == 200, name
        assert len(answer.content) > 500
    assert "SwaggerUIBundle" in client.get("/docs/swagger-ui-bundle.js").text
    assert client.get("/docs/../pyproject.toml").status_code == 404
    assert client.get("/docs/other.js").json()["error"]["code"] == "not_found"
    assert client.get("/redoc").status_code == 404


def test_the_examples_in_openapi_work(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    for path, name in {
        "/v2/rerank": "CohereRequest",
        "/v1/rerank": "JinaRequest",
        "/rerank": "TeiRequest",
        "/score": "ScoreRequest",
        "/v1/memories/rerank": "MemoriesRequest",
    }.items():
        answer = client.post(path, json=schemas[name]["example"])
        assert answer.status_code == 200, answer.text
    assert client.post("/v1/rerank", json=schemas["VoyageRequest"]["example"]).json()["object"] == "list"
    assert "id" in client.post("/rerank", json=schemas["VllmRerankRequest"]["example"]).json()
